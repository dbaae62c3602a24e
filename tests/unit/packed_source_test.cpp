// Whether a source is still what a packed folder was made from; options as text; where cache entries
// are kept.
#include <cstdlib>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits>
#include <sys/stat.h>

#include "loader/cache_folder.h"
#include "loader/packed_options.h"
#include "loader/source_identity.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_models.h"
#include "tokenizer/sha256.h"

namespace fut {
namespace {

using test::error_message;
using test::expect_mentions;
using test::read_file;
using test::TempFolder;
using test::write_file;

SourceIdentity identify(const std::filesystem::path& source, IdentityDepth depth) {
  return identify_source(source, depth, sha256_hex, {});
}

std::filesystem::path write_source(const std::filesystem::path& folder, int num_shards = 0) {
  test::ToyModelOptions options;
  options.files.num_shards = num_shards;
  return test::write_toy_model(folder, options);
}

void set_time(const std::filesystem::path& file, long seconds, long nanoseconds) {
  const timespec times[2] = {{seconds, nanoseconds}, {seconds, nanoseconds}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
}

// Changes one byte near the end of a file and keeps its time.
void change_content(const std::filesystem::path& file) {
  struct stat status = {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  std::string bytes = read_file(file);
  bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 1);
  write_file(file, bytes);
  set_time(file, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

std::string difference(const SourceIdentity& recorded, const std::filesystem::path& source,
                       IdentityDepth depth = IdentityDepth::Quick) {
  const auto found = compare_source(recorded, source, depth, sha256_hex, {});
  return found ? found->text : "";
}

TEST(SourceIdentity, KnowsEveryFileThatCounts) {
  const TempFolder folder;
  write_source(folder / "source", 2);
  write_file(folder / "source" / "README.md", "x");
  std::vector<std::string> names;
  for (const SourceFile& file : identify(folder / "source", IdentityDepth::Full).files) {
    names.push_back(file.name);
    EXPECT_EQ(file.size, std::filesystem::file_size(folder / "source" / file.name));
    EXPECT_EQ(file.head.size(), 64U);
    EXPECT_EQ(file.content.size(), 64U);
    EXPECT_GT(file.modified_ns, 0);
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "config.json", "generation_config.json", "model-00001-of-00002.safetensors",
                       "model-00002-of-00002.safetensors", "model.safetensors.index.json",
                       "tokenizer.json", "tokenizer_config.json"}));
}

TEST(SourceIdentity, OfAnUnchangedSourceIsTheSame) {
  const TempFolder folder;
  write_source(folder / "source");
  const SourceIdentity full = identify(folder / "source", IdentityDepth::Full);
  EXPECT_EQ(identify(folder / "source", IdentityDepth::Full), full);
  EXPECT_EQ(difference(full, folder / "source"), "");
  EXPECT_EQ(difference(full, folder / "source", IdentityDepth::Full), "");
}

TEST(SourceIdentity, AsTextForgetsTimesAndPlaces) {
  const TempFolder folder;
  write_source(folder / "a");
  write_source(folder / "b");
  set_time(folder / "b" / "config.json", 1000, 7);
  const std::string a = identity_json(identify(folder / "a", IdentityDepth::Full));
  EXPECT_EQ(identity_json(identify(folder / "b", IdentityDepth::Full)), a);
  EXPECT_EQ(a.find(folder.path().string()), a.npos);
  EXPECT_EQ(difference(parse_identity("x", a), folder / "b", IdentityDepth::Full), "");
}

TEST(ChangedSource, IsNamedWithBothValues) {
  const TempFolder folder;
  const std::filesystem::path source = write_source(folder / "source");
  const SourceIdentity before = identify(source, IdentityDepth::Full);
  const auto size = std::filesystem::file_size(source / "tokenizer.json");
  write_file(source / "tokenizer.json", read_file(source / "tokenizer.json") + " ");
  expect_mentions(difference(before, source),
                  {"'tokenizer.json'", std::to_string(size), std::to_string(size + 1)});
  std::filesystem::remove(source / "tokenizer.json");
  expect_mentions(difference(before, source), {"'tokenizer.json'", "is gone"});
  write_source(source);
  write_file(source / "merges.txt", "abc");
  expect_mentions(difference(before, source), {"'merges.txt'", "3 bytes", "is new"});
}

TEST(ChangedSource, IsNoticedByItsHeaderAtOnce) {
  const TempFolder folder;
  const std::filesystem::path source = write_source(folder / "source");
  const SourceIdentity before = identify(source, IdentityDepth::Quick);
  std::string bytes = read_file(source / "model.safetensors");
  bytes.replace(bytes.find("k_proj"), 6, "z_proj");
  write_file(source / "model.safetensors", bytes);
  expect_mentions(difference(before, source), {"'model.safetensors'", "begins differently"});
}

TEST(ChangedSource, OfTheSameSizeAndTimeTakesAFullLook) {
  const TempFolder folder;
  const std::filesystem::path source = write_source(folder / "source");
  const SourceIdentity before = identify(source, IdentityDepth::Full);
  change_content(source / "model.safetensors");
  EXPECT_EQ(difference(before, source), "");
  expect_mentions(difference(before, source, IdentityDepth::Full),
                  {"'model.safetensors'", "another content"});
}

TEST(ChangedSource, ByItsTimesAloneIsToldApart) {
  const TempFolder folder;
  const std::filesystem::path source = write_source(folder / "source");
  const SourceIdentity before = identify(source, IdentityDepth::Full);
  set_time(source / "config.json", 1000, 7);
  const auto found = compare_source(before, source, IdentityDepth::Quick, sha256_hex, {});
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->times_only);
  expect_mentions(found->text, {"'config.json'", "1000000000007"});
  // A difference that counts goes before one of times.
  change_content(source / "tokenizer.json");
  const auto full = compare_source(before, source, IdentityDepth::Full, sha256_hex, {});
  ASSERT_TRUE(full.has_value());
  EXPECT_FALSE(full->times_only);
  // A record without times has nothing to say about them.
  change_content(source / "tokenizer.json");
  EXPECT_EQ(difference(parse_identity("x", identity_json(before)), source), "");
}

TEST(SourceNote, KeepsPlaceAndTimes) {
  const TempFolder folder;
  write_source(folder / "source");
  const SourceNote note = {(folder / "source").string(),
                           identify(folder / "source", IdentityDepth::Quick)};
  EXPECT_FALSE(read_source_note(folder.path()).has_value());
  write_file(folder / kSourceNoteName, source_note_json(note));
  const std::optional<SourceNote> read = read_source_note(folder.path());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->folder, note.folder);
  EXPECT_EQ(read->identity, note.identity);
  for (const char* damaged : {"{", "{}", R"({"folder": "x"})", R"({"folder": "x", "files": [1]})",
                              R"({"folder": "x", "files": [{"name": "a"}]})"}) {
    write_file(folder / kSourceNoteName, damaged);
    expect_mentions(error_message(ErrorKind::Data, [&] { (void)read_source_note(folder.path()); }),
                    {kSourceNoteName});
  }
}

TEST(Options, SurviveTheWayThroughText) {
  PackedOptions options;
  EXPECT_EQ(parse_options("f", options_json(options)), options);
  options = {.method = QuantMethod::Gptq,
             .group_size = 64,
             .scale_rule = ScaleRule::MinMax,
             .rotate = true,
             .rotation_seed = std::numeric_limits<std::uint64_t>::max(),
             .balance_qk = false,
             .balance_ffn = false,
             .kv_rotation = false,
             .calibration = {"a \"b\"\n.txt", std::uint64_t{1} << 60, 0xFFFFFFFFU},
             .calibration_tokens = 262144};
  EXPECT_EQ(parse_options("f", options_json(options)), options);
  EXPECT_EQ(options_json(options).find('\n'), std::string::npos);
  options.calibration.name = "\xFF";  // not UTF-8: written as the replacement character
  EXPECT_NO_THROW((void)parse_options("f", options_json(options)));
}

// ---- the cache folder ---------------------------------------------------------------------------

TEST(CacheRoot, FollowsTheBaseDirectoryRules) {
  using Path = std::filesystem::path;
  EXPECT_EQ(cache_root(Path("here"), {"/x", "/h"}), "here");
  EXPECT_EQ(cache_root({}, {"/x", "/h"}), "/x/fut");
  EXPECT_EQ(cache_root({}, {{}, "/h"}), "/h/.cache/fut");
  EXPECT_EQ(cache_root({}, {"", "/h"}), "/h/.cache/fut");
  EXPECT_EQ(cache_root({}, {"relative", "/h"}), "/h/.cache/fut");
}

TEST(CacheRoot, WithoutAHomeNamesTheFlags) {
  const std::vector<CacheEnvironment> homeless = {{}, {"relative", {}}, {{}, ""}, {{}, "h"}};
  for (const CacheEnvironment& environment : homeless) {
    expect_mentions(error_message(ErrorKind::Usage, [&] { (void)cache_root({}, environment); }),
                    {"HOME", "XDG_CACHE_HOME", "--cache-dir", "--no-cache"});
  }
}

TEST(CacheRoot, ReadsTheEnvironment) {
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", "/somewhere", 1), 0);
  EXPECT_EQ(read_cache_environment().xdg_cache_home, "/somewhere");
  ASSERT_EQ(::unsetenv("XDG_CACHE_HOME"), 0);
  EXPECT_FALSE(read_cache_environment().xdg_cache_home.has_value());
}

TEST(CacheEntry, IsNamedAfterTheModelAndDiffersByPlaceAndOptions) {
  const TempFolder folder;
  const auto name_of = [&](const std::string& path, const PackedOptions& options = {}) {
    std::filesystem::create_directories(folder / path);
    return cache_entry_name(folder / path, options, sha256_hex);
  };
  const std::string name = name_of("Llama-3.1-8B");
  EXPECT_TRUE(name.starts_with("Llama-3.1-8B-")) << name;
  EXPECT_EQ(name.size(), 13U + 16U);
  EXPECT_EQ(name_of("Llama-3.1-8B/"), name);
  EXPECT_EQ(name_of("x/../Llama-3.1-8B"), name);
  std::filesystem::create_directory_symlink(folder / "Llama-3.1-8B", folder / "link");
  EXPECT_EQ(name_of("link"), name);
  EXPECT_NE(name_of("other/Llama-3.1-8B"), name);
  PackedOptions options;
  options.group_size = 64;
  EXPECT_NE(name_of("Llama-3.1-8B", options), name);
}

TEST(CacheEntry, HasAHarmlessName) {
  const TempFolder folder;
  const auto name_of = [&](const std::string& path) {
    std::filesystem::create_directories(folder / path);
    return cache_entry_name(folder / path, {}, sha256_hex);
  };
  EXPECT_TRUE(name_of("models--org--Name-1B/snapshots/0123abcd").starts_with("org--Name-1B-"));
  EXPECT_TRUE(name_of("snapshots/0123abcd").starts_with("0123abcd-"));
  EXPECT_TRUE(name_of(".hidden a\nb\xC3\xA4").starts_with("_hidden_a_b__-"));
  EXPECT_EQ(name_of(std::string(200, 'x')).size(), 64U + 1 + 16);
  expect_mentions(error_message(ErrorKind::Data,
                                [&] { (void)cache_entry_name(folder / "none", {}, sha256_hex); }),
                  {(folder / "none").string()});
}

}  // namespace
}  // namespace fut
