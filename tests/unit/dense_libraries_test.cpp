// cuBLAS and cuSOLVER as GPTQ calls them, with stand-ins of the same interface (fake_dense_libraries.cpp):
// which argument goes where, and the blocks of an inverse. Each product is compared with sums that are
// exact.
#include "kernels/cuda/dense_libraries.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>

#include "kernels/numeric/formats.h"
#include "loader/dense_linear.h"
#include "tests/support/expect_error.h"

namespace fut::test {
namespace {

class Libraries {
 public:
  Libraries()
      : libraries_(reinterpret_cast<cuda::StreamHandle>(this),  // the stand-ins ask for some
                   [this](std::size_t bytes) {
                     room_.resize(std::max(room_.size(), bytes));
                     return room_.data();
                   },
                   {FUT_FAKE_DENSE, FUT_FAKE_DENSE}) {}
  cuda::DenseLibraries& get() { return libraries_; }

 private:
  std::vector<std::byte> room_;
  cuda::DenseLibraries libraries_;
};

std::vector<double> whole_numbers(std::size_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> any(-9, 9);
  std::vector<double> values(count);
  for (double& v : values) v = any(engine);
  return values;
}

TEST(DenseLibraries, ProductsOfPartsOfMatrices) {
  Libraries libraries;
  constexpr std::int64_t kRows = 7, kDepth = 5, kCols = 11, kStride = 13;
  const std::vector<double> a = whole_numbers(kRows * kStride, 1);
  const std::vector<double> b = whole_numbers(kCols * kStride, 2);
  for (const bool transposed : {false, true}) {
    std::vector<double> c = whole_numbers(kRows * kStride, 3);
    std::vector<double> expected = c;
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t j = 0; j < kCols; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < kDepth; ++k) {
          const std::int64_t of_b = transposed ? j * kStride + k : k * kStride + j;
          sum += a[static_cast<std::size_t>(r * kStride + k)] * b[static_cast<std::size_t>(of_b)];
        }
        double& out = expected[static_cast<std::size_t>(r * kStride + j)];
        out = (transposed ? -1 : 1) * sum + (transposed ? 0 : out);
      }
    }
    libraries.get().multiply(
        {{c.data(), kRows, kCols, kStride},
         {a.data(), kRows, kDepth, kStride},
         {b.data(), transposed ? kCols : kDepth, transposed ? kDepth : kCols, kStride},
         transposed,
         transposed ? -1.0 : 1.0,
         transposed ? 0.0 : 1.0});
    EXPECT_EQ(c, expected);
  }
}

TEST(DenseLibraries, ProductsOfTokens) {
  Libraries libraries;
  constexpr std::int64_t kTokens = 6, kCols = 9, kStride = 10;
  std::vector<std::uint16_t> left, right;
  const std::vector<double> x = whole_numbers(kTokens * kStride, 4);
  const std::vector<double> y = whole_numbers(kTokens * kStride, 5);
  for (const double v : x) left.push_back(f32_to_bf16(static_cast<float>(v)));
  for (const double v : y) right.push_back(f32_to_bf16(static_cast<float>(v)));
  std::vector<float> out(kCols * kCols, -1);
  libraries.get().multiply_tokens({left.data(), DType::BF16, kTokens, kCols, kStride},
                                  {right.data(), DType::BF16, kTokens, kCols, kStride}, out.data());
  for (std::int64_t i = 0; i < kCols; ++i) {
    for (std::int64_t j = 0; j < kCols; ++j) {
      double sum = 0;
      for (std::int64_t t = 0; t < kTokens; ++t) {
        sum += x[static_cast<std::size_t>(t * kStride + i)] *
               y[static_cast<std::size_t>(t * kStride + j)];
      }
      EXPECT_EQ(out[static_cast<std::size_t>(i * kCols + j)], sum);
    }
  }
}

// Two and a half blocks of the inverse. Both sides round their sums of at most n products in float64; the
// matrix is so near to its diagonal that errors do not grow.
TEST(DenseLibraries, FactorAndInverseAreTheHosts) {
  Libraries libraries;
  constexpr std::int64_t kSize = 640;
  SquareMatrix a(kSize);
  std::mt19937 engine(6);
  std::uniform_real_distribution<double> any(-1, 1);
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t j = 0; j < i; ++j) a.row(i)[j] = any(engine);
    a.row(i)[i] = kSize;
  }
  SquareMatrix expected = a;
  ASSERT_FALSE(cholesky_lower(expected, {}).has_value());
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t j = i + 1; j < kSize; ++j) a.row(i)[j] = std::nan("");
  }
  std::int32_t failed = -1;
  libraries.get().factor_lower(a.values.data(), kSize, &failed);
  EXPECT_EQ(failed, 0);
  const auto expect_near = [&] {
    for (std::int64_t i = 0; i < kSize; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) {
        const double size = std::sqrt(expected.row(i)[i] * expected.row(j)[j]);
        ASSERT_NEAR(a.row(i)[j], expected.row(i)[j], kSize * 0x1p-52 * size) << i << " " << j;
      }
    }
  };
  expect_near();
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t j = i + 1; j < kSize; ++j) a.row(i)[j] = 0;
  }
  libraries.get().invert_lower(a.values.data(), kSize, &failed);
  invert_lower(expected, {});
  expect_near();
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t j = i + 1; j < kSize; ++j) ASSERT_EQ(a.row(i)[j], 0) << i << " " << j;
  }
}

TEST(DenseLibraries, SaysWhatIsNotPositiveDefinite) {
  Libraries libraries;
  std::vector<double> a = {4, 0, 2, 1};  // the lower triangle of {4, 2; 2, 1}
  std::int32_t failed = 0;
  libraries.get().factor_lower(a.data(), 2, &failed);
  EXPECT_NE(failed, 0);
}

TEST(DenseLibraries, NamesTheLibraryThatIsMissing) {
  const auto open = [](const std::string& cublas, const std::string& cusolver) {
    return error_message(ErrorKind::Device, [&] {
      const cuda::DenseLibraries libraries(nullptr, {}, {cublas, cusolver});
    });
  };
  expect_mentions(open("libcublas.so.of-no-version", FUT_FAKE_DENSE),
                  {"libcublas.so.of-no-version", "CUDA 13", "--device cpu"});
  expect_mentions(open(FUT_FAKE_DENSE, "libcusolver.so.of-no-version"),
                  {"libcusolver.so.of-no-version", "CUDA 13", "--device cpu"});
  // The management library of another test, which has none of the functions.
  expect_mentions(open(FUT_FAKE_DENSE, FUT_FAKE_OTHER), {FUT_FAKE_OTHER, "cusolverDnCreate"});
}

// Whatever the library refuses is told with its status.
TEST(DenseLibraries, TellsTheStatusOfACall) {
  cuda::DenseLibraries libraries(nullptr, {}, {FUT_FAKE_DENSE, FUT_FAKE_DENSE});  // no stream
  double number = 1;
  expect_mentions(
      error_message(
          ErrorKind::Runtime,
          [&] {
            libraries.multiply({{&number, 1, 1, 1}, {&number, 1, 1, 1}, {&number, 1, 1, 1}});
          }),
      {"cublasDgemm", "status 7"});
}

// A card that is full is nothing that another library would mend.
TEST(DenseLibraries, ThatHaveNoMemoryAreACapacityError) {
  Libraries libraries;
  double number = 1;
  expect_mentions(
      error_message(
          ErrorKind::Capacity,
          [&] {
            libraries.get().multiply({{nullptr, 1, 1, 1}, {&number, 1, 1, 1}, {&number, 1, 1, 1}});
          }),
      {"cublasDgemm", FUT_FAKE_DENSE, "no memory"});
}

TEST(DenseLibraries, TellTheirVersions) {
  EXPECT_EQ(Libraries().get().versions(), "cuBLAS 130100, cuSOLVER 12004");
}

}  // namespace
}  // namespace fut::test
