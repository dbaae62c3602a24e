// The safetensors reader: good files of every kind, and a table of bad ones. Each bad file is
// refused with its name, its size and what its header claims, without using memory for the claim.
#include "loader/safetensors.h"

#include <cstring>
#include <sys/resource.h>

#include "tests/support/expect_error.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace fut {
namespace {

using test::error_message;
using test::expect_mentions;
using test::make_tensor;
using test::NamedTensor;
using test::safetensors_image;
using test::TempFolder;
using test::write_file;

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFFU);
  return bytes;
}

// A file whose header is the entries given, each like "a":{...}.
std::string file_with(std::string_view entries, std::size_t payload_bytes) {
  return safetensors_image("{" + std::string(entries) + "}", std::string(payload_bytes, 'p'));
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::string open_error(const std::filesystem::path& path) {
  return error_message(ErrorKind::Data, [&] { (void)Safetensors::open(path); });
}

// ---- good files ---------------------------------------------------------------------------------

TEST(Safetensors, FindsTensorsOfAllThreeTypesAndReadsThem) {
  const TempFolder folder;
  const std::vector<float> values = {1.0F, -2.5F, 0.0F, 3.0F, 65504.0F, -0.5F};
  const std::vector<NamedTensor> tensors = {make_tensor("f32", DType::F32, {2, 3}, values),
                                            make_tensor("f16", DType::F16, {6}, values),
                                            make_tensor("bf16", DType::BF16, {3, 2}, values)};
  test::write_safetensors(folder / "a.safetensors", tensors);

  const Safetensors file = Safetensors::open(folder / "a.safetensors");
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensors()[1].name, "f16");
  EXPECT_EQ(file.tensors()[1].dtype, DType::F16);
  EXPECT_EQ(file.find("nothing"), nullptr);
  for (const NamedTensor& tensor : tensors) {
    const TensorInfo* info = file.find(tensor.name);
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->shape, tensor.shape);
    std::string bytes(info->bytes, '\0');
    file.read(*info, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, tensor.bytes);
  }
  // 1.0 and -2.5 in float16 and bfloat16.
  EXPECT_EQ(tensors[1].bytes.substr(0, 4), std::string("\x00\x3C\x00\xC1", 4));
  EXPECT_EQ(tensors[2].bytes.substr(0, 4), std::string("\x80\x3F\x20\xC0", 4));
}

TEST(Safetensors, ReadsAPartOfATensor) {
  const TempFolder folder;
  const std::vector<float> values = {1, 2, 3, 4};
  const std::vector<NamedTensor> tensors = {make_tensor("a", DType::F32, {4}, values)};
  test::write_safetensors(folder / "a.safetensors", tensors);
  const Safetensors file = Safetensors::open(folder / "a.safetensors");
  std::vector<float> part(2);
  file.read_part(file.tensors()[0], 8, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, (std::vector<float>{3, 4}));
}

TEST(Safetensors, TakesUnusualButValidFiles) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.safetensors";

  write_file(path, safetensors_image("{}", ""));
  EXPECT_TRUE(Safetensors::open(path).tensors().empty());

  write_file(path, safetensors_image(R"({"__metadata__":{"format":"pt"}}   )", ""));
  EXPECT_EQ(Safetensors::open(path).metadata().at("format"), "pt");

  // Entries need not be in the order of their data; scalars have no extents; tensors may be empty.
  write_file(path, file_with(entry("late", "F32", "[1]", "[4,8]") + "," +
                                 entry("scalar", "F32", "[]", "[0,4]") + "," +
                                 entry("empty", "BF16", "[0,7]", "[4,4]"),
                             8));
  const Safetensors file = Safetensors::open(path);
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensors()[0].name, "scalar");
  EXPECT_EQ(file.tensors()[1].name, "empty");
  EXPECT_EQ(file.tensors()[2].name, "late");
}

TEST(Safetensors, KeepsTensorsOfOtherTypesApart) {
  const TempFolder folder;
  write_file(folder / "a.safetensors", file_with(entry("ids", "I64", "[2]", "[0,16]") + "," +
                                                     entry("w", "F8_E4M3", "[3]", "[16,19]") + "," +
                                                     entry("half_bytes", "F4", "[2,3]", "[19,22]"),
                                                 22));
  const Safetensors file = Safetensors::open(folder / "a.safetensors");
  EXPECT_TRUE(file.tensors().empty());
  ASSERT_EQ(file.unsupported().size(), 3U);
  EXPECT_EQ(file.unsupported()[1].name, "w");
  EXPECT_EQ(file.unsupported()[1].dtype, "F8_E4M3");
  EXPECT_EQ(file.unsupported()[1].bytes, 3U);
}

TEST(Safetensors, OpensTheFilesThatModelsComeWith) {
  const std::filesystem::path demo = test::source_path("configs/demo-6m/model.safetensors");
  EXPECT_NE(Safetensors::open(demo).find("model.embed_tokens.weight"), nullptr);
}

// ---- bad files ----------------------------------------------------------------------------------

struct BadFile {
  std::string name;
  std::string bytes;
  std::vector<std::string> facts;  // beside the file's name and size
};

std::string lfs_pointer() {
  return "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e"
         "adbb8f32b1258daaa5e2ca24d17e2393\nsize 4976698672\n";
}

std::vector<BadFile> files_with_a_bad_length() {
  const std::string good = safetensors_image("{}", "");
  return {
      {"empty", "", {"0 bytes", "empty"}},
      {"seven_bytes", "1234567", {"7 bytes", "unfinished"}},
      {"zeros", std::string(8, '\0'), {"8 bytes", "header of 0 bytes", "zeros"}},
      {"top_bit", little_endian(1ULL << 63) + "{}", {"10 bytes", "9223372036854775808"}},
      {"all_ones", little_endian(~0ULL) + "{}", {"18446744073709551615"}},
      {"over_the_limit",
       little_endian(100'000'001) + std::string(1016, ' '),
       {"1024 bytes", "100000001", "100000000"}},
      {"one_too_many", little_endian(3) + "{}", {"10 bytes", "header of 3 bytes"}},
      {"one_byte_header", little_endian(1) + "{}", {"header of 1 bytes"}},
      {"lfs_pointer", lfs_pointer(), {"2336927755350992246", "LFS"}},
      {"web_page", "<!DOCTYPE html>\n<html><body>Please log in</body></html>", {"web page"}},
      {"lower_case_page", "\n <html lang=en><head></head></html>", {"web page"}},
      {"gguf", "GGUF\3\0\0\0 and so on and on", {"GGUF"}},
      {"pytorch", std::string("PK\3\4\0\0\0\0\0\0 archive/data.pkl", 27), {"PyTorch"}},
  };
}

std::vector<BadFile> files_with_a_bad_header() {
  const std::string good = entry("a", "F32", "[1]", "[0,4]");
  return {
      {"list", little_endian(4) + "[1] ", {"header of 4 bytes", "begin with"}},
      {"not_json", safetensors_image("{\"a\":,}", ""), {"header of 7 bytes", "JSON"}},
      {"cut_json", safetensors_image("{\"a\":{", ""), {"JSON"}},
      {"text_behind", safetensors_image("{} x", ""), {"JSON"}},
      {"not_utf8", safetensors_image("{\"\xFF\":1}", ""), {"JSON"}},
      {"nul_padding", safetensors_image(std::string("{}\0\0", 4), ""), {"JSON"}},
      {"name_twice", file_with(good + "," + good, 4), {"'a'", "twice"}},
      {"dtype_twice",
       file_with(R"("a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4),
       {"'a'", "dtype twice"}},
      {"no_dtype", file_with(R"("a":{"shape":[1],"data_offsets":[0,4]})", 4), {"dtype is missing"}},
      {"no_shape",
       file_with(R"("a":{"dtype":"F32","data_offsets":[0,4]})", 4),
       {"shape is missing"}},
      {"no_offsets", file_with(R"("a":{"dtype":"F32","shape":[1]})", 4), {"data_offsets"}},
      {"extra_key",
       file_with(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]})", 4),
       {"'strides'"}},
      {"entry_is_number", file_with(R"("a":7)", 4), {"'a'", "7"}},
      {"dtype_is_number", file_with(R"("a":{"dtype":1})", 4), {"dtype", "a string"}},
      {"metadata_is_number", file_with(R"("__metadata__":1)", 0), {"__metadata__", "an object"}},
      {"metadata_value", file_with(R"("__metadata__":{"step":1})", 0), {"'step'", "a string"}},
      {"metadata_twice", file_with(R"("__metadata__":{},"__metadata__":{})", 0), {"twice"}},
      {"metadata_key_twice", file_with(R"("__metadata__":{"a":"","a":""})", 0), {"'a'", "twice"}},
      {"control_bytes_in_name", file_with(R"("a\n\u0007":7)", 4), {"'a\\x0A\\x07'"}},
      {"deep_list", safetensors_image("{\"a\":" + std::string(1'000'000, '['), ""), {"an array"}},
      {"deep_shape",
       safetensors_image(R"({"a":{"shape":)" + std::string(1'000'000, '['), ""),
       {"an array"}},
      {"deep_metadata",
       safetensors_image(R"({"__metadata__":{"a":)" + std::string(1'000'000, '{'), ""),
       {"an object"}},
      {"number_beyond_float64", file_with(R"("a":{"dtype":"F32","shape":[1e999]})", 4), {"JSON"}},
  };
}

std::vector<BadFile> files_with_bad_tensors() {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets,
                      std::size_t payload) {
    return file_with(entry("a", dtype, shape, offsets), payload);
  };
  const std::string a = entry("a", "F32", "[2]", "[0,8]");
  std::string many = "[1";
  for (int i = 0; i < 16; ++i) many += ",1";
  return {
      {"unknown_dtype", one("F33", "[1]", "[0,4]", 4), {"'a'", "'F33'"}},
      {"lower_case_dtype", one("f32", "[1]", "[0,4]", 4), {"'f32'"}},
      {"shape_against_range", one("F32", "[3]", "[0,8]", 8), {"12 bytes", "8 bytes", "[3]"}},
      {"shape_overflow", one("F32", "[9223372036854775807,4]", "[0,8]", 8), {"too large"}},
      {"shape_wraps_to_8", one("F32", "[4611686018427387904,2,1]", "[0,8]", 8), {"too large"}},
      {"shape_beyond_int64", one("F32", "[9223372036854775808,0]", "[0,0]", 0), {"too large"}},
      {"shape_beyond_uint64", one("F32", "[18446744073709551616]", "[0,8]", 8), {"shape"}},
      {"shape_negative", one("F32", "[-1]", "[0,8]", 8), {"-1"}},
      {"shape_float", one("F32", "[2.0]", "[0,8]", 8), {"2.0"}},
      {"shape_exponent", one("F32", "[2e0]", "[0,8]", 8), {"2e0"}},
      {"shape_string", one("F32", "[\"2\"]", "[0,8]", 8), {"'2'"}},
      {"shape_null", one("F32", "null", "[0,8]", 8), {"null"}},
      {"shape_rank", one("F32", many + "]", "[0,4]", 4), {"16 dimensions"}},
      {"half_byte", one("F4", "[3]", "[0,2]", 2), {"'a'"}},
      {"one_offset", one("F32", "[2]", "[0]", 8), {"2"}},
      {"three_offsets", one("F32", "[2]", "[0,8,8]", 8), {"2 numbers"}},
      {"offsets_backwards", one("F32", "[2]", "[8,0]", 8), {"backwards"}},
      {"offset_negative", one("F32", "[2]", "[-8,0]", 8), {"-8"}},
      {"huge_offsets",
       one("F32", "[2]", "[18446744073709551600,18446744073709551608]", 8),
       {"hole"}},
      {"past_the_end", one("F32", "[4]", "[0,16]", 8), {"'a'", "cut short"}},
      {"hole_at_start", one("F32", "[1]", "[4,8]", 8), {"'a'", "hole"}},
      {"hole_between",
       file_with(a + "," + entry("b", "F32", "[1]", "[12,16]"), 16),
       {"'b'", "hole", "8"}},
      {"overlap",
       file_with(a + "," + entry("b", "F32", "[2]", "[4,12]"), 12),
       {"'b'", "overlaps", "8"}},
      {"same_range", file_with(a + "," + entry("b", "F32", "[2]", "[0,8]"), 8), {"overlaps"}},
      {"bytes_left_over", one("F32", "[2]", "[0,8]", 24), {"16 bytes too many"}},
      {"data_without_tensors", safetensors_image("{}", "x"), {"1 bytes too many"}},
  };
}

class BadSafetensors : public testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensors, IsRefusedWithItsNameAndSize) {
  const BadFile& bad = GetParam();
  const TempFolder folder;
  const std::filesystem::path path = folder / "model.safetensors";
  write_file(path, bad.bytes);
  const std::string message = open_error(path);
  expect_mentions(message, {path.string(), fmt::format("{} bytes", bad.bytes.size())});
  expect_mentions(message, bad.facts);
  if (bad.bytes.size() >= 8) {
    std::uint64_t claimed = 0;
    std::memcpy(&claimed, bad.bytes.data(), 8);
    expect_mentions(message, {std::to_string(claimed)});
  }
}

const auto bad_file_name = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Length, BadSafetensors, testing::ValuesIn(files_with_a_bad_length()),
                         bad_file_name);
INSTANTIATE_TEST_SUITE_P(Header, BadSafetensors, testing::ValuesIn(files_with_a_bad_header()),
                         bad_file_name);
INSTANTIATE_TEST_SUITE_P(Tensors, BadSafetensors, testing::ValuesIn(files_with_bad_tensors()),
                         bad_file_name);

TEST(Safetensors, BadFilesCostNoMemory) {
  const auto peak_kib = [] {
    rusage usage = {};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const TempFolder folder;
  for (const BadFile& bad : files_with_a_bad_length()) write_file(folder / bad.name, bad.bytes);
  const long before = peak_kib();
  for (const BadFile& bad : files_with_a_bad_length()) (void)open_error(folder / bad.name);
  EXPECT_LT(peak_kib() - before, 50 * 1024);
}

// ---- files that are cut or change ---------------------------------------------------------------

TEST(Safetensors, ACutFileNamesTheTensorAndBothEnds) {
  const std::vector<float> values(1000, 1.0F);
  const std::vector<NamedTensor> tensors = {make_tensor("first", DType::F32, {1000}, values),
                                            make_tensor("last", DType::F32, {10, 100}, values)};
  const std::string whole = safetensors_image(tensors);
  const std::size_t data_begin = whole.size() - 8000;
  struct Cut {
    std::size_t size;
    std::string tensor;
    std::size_t wanted_end;
  };
  for (const Cut& cut : {Cut{whole.size() - 1, "'last'", whole.size()},
                         Cut{data_begin + 2000, "'first'", data_begin + 4000},
                         Cut{data_begin, "'first'", data_begin + 4000}}) {
    const TempFolder folder;
    write_file(folder / "cut.safetensors", std::string_view(whole).substr(0, cut.size));
    expect_mentions(
        open_error(folder / "cut.safetensors"),
        {"cut.safetensors", cut.tensor, std::to_string(cut.wanted_end), std::to_string(cut.size)});
  }
}

TEST(Safetensors, AFileThatShrinksWhileItIsOpenIsAnErrorOnReading) {
  const TempFolder folder;
  const std::vector<float> values(100'000, 1.0F);
  const std::vector<NamedTensor> tensors = {make_tensor("a", DType::F32, {100'000}, values)};
  test::write_safetensors(folder / "a.safetensors", tensors);
  const Safetensors file = Safetensors::open(folder / "a.safetensors");
  std::filesystem::resize_file(folder / "a.safetensors", 200'000);
  std::vector<std::byte> bytes(file.tensors()[0].bytes);
  const std::string message =
      error_message(ErrorKind::Runtime, [&] { file.read(file.tensors()[0], bytes); });
  expect_mentions(message, {"a.safetensors", "200000"});
}

}  // namespace
}  // namespace fut
