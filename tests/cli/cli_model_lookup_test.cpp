// Where -m finds a model: folders, weight files, the Hugging Face cache, the demonstration model.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

// A fake cache with one repository, laid out as huggingface_hub does.
class ModelLookup : public ::testing::Test {
 protected:
  ModelLookup() {
    Script script;
    script.say("x", {"Hi", "<|eot_id|>"});
    snapshot = repository / "snapshots" / commit;
    write_scripted_model(snapshot, script.model);
    fs::create_directories(repository / "refs");
    fs::create_directories(repository / "blobs");
    write_file(repository / "refs/main", commit + "\n");
  }
  ProcessResult run(const std::string& name,
                    std::map<std::string, std::optional<std::string>> variables) {
    return fut({"run", "-m", name, "--raw", "-p", "x"}, with_variables(std::move(variables)));
  }
  ProcessResult run(const std::string& name) {
    return run(name, {{"HF_HUB_CACHE", (folder / "hub").string()}});
  }
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  TempFolder folder;
  const fs::path repository = folder / "hub/models--org--toy";
  fs::path snapshot;
};

TEST_F(ModelLookup, FindsFoldersAndWeightFilesInThem) {
  expect_success(run(snapshot.string()), "Hi");
  expect_success(run((snapshot / "model.safetensors").string()), "Hi");
  fs::copy_file(snapshot / "model.safetensors", snapshot / "other.safetensors");
  expect_failure(run((snapshot / "other.safetensors").string()), 3,
                 {"other.safetensors", "model.safetensors"});
}

TEST_F(ModelLookup, ANamedWeightFileIsTheOneThatIsRead) {
  fs::rename(snapshot / "model.safetensors", snapshot / "only.safetensors");
  expect_success(run((snapshot / "only.safetensors").string()), "Hi");
  ToyModelOptions options;
  options.files.num_shards = 2;
  const fs::path sharded = write_toy_model(folder / "sharded", options);
  write_file(sharded / "stray.safetensors", "junk");
  expect_failure(run((sharded / "stray.safetensors").string()), 3,
                 {"stray.safetensors", "model-00001-of-00002.safetensors"});
}

TEST_F(ModelLookup, AnImpossibleNameIsBadData) {
  expect_failure(run(std::string(5000, 'a')), 3, {"aaaa"});
}

TEST_F(ModelLookup, FindsNamesInTheCacheOfEveryVariable) {
  expect_success(run("org/toy"), "Hi");
  const std::string root = folder.path().string();
  expect_success(run("org/toy", {{"HF_HOME", root}}), "Hi");
  expect_success(run("org/toy", {{"HUGGINGFACE_HUB_CACHE", root + "/hub"}}), "Hi");
  fs::create_directories(folder / "huggingface");
  fs::create_directory_symlink(folder / "hub", folder / "huggingface/hub");
  expect_success(run("org/toy", {{"XDG_CACHE_HOME", root}}), "Hi");
  fs::create_directories(folder / ".cache/huggingface");
  fs::create_directory_symlink(folder / "hub", folder / ".cache/huggingface/hub");
  expect_success(run("org/toy", {{"HOME", root}}), "Hi");
  expect_success(run("org/toy", {{"HF_HOME", root}, {"HF_HUB_OFFLINE", "1"}}), "Hi");
}

TEST_F(ModelLookup, TakesBranchesAndCommitsAsRevision) {
  write_file(repository / "refs/dev", commit);
  expect_success(run("org/toy@main"), "Hi");
  expect_success(run("org/toy@dev"), "Hi");
  expect_success(run("org/toy@" + commit), "Hi");
  expect_success(run("org/toy@0123456"), "Hi");
  expect_failure(run("org/toy@other"), 3, {"other", "hf download org/toy --revision other"});
}

TEST_F(ModelLookup, ALonelySnapshotIsTakenAndSaid) {
  fs::remove(repository / "refs/main");
  const ProcessResult result = run("org/toy");
  expect_success(result, "Hi");
  expect_mentions(result.err, {commit});
}

TEST_F(ModelLookup, AnUnfinishedDownloadIsSaid) {
  fs::remove(snapshot / "config.json");
  write_file(repository / "blobs/abc.incomplete", "part");
  expect_failure(run("org/toy"), 3, {"config.json", "unfinished", "hf download org/toy"});
}

TEST_F(ModelLookup, ListsThePlacesAndWhatToTypeNext) {
  expect_failure(
      run("org/missing"), 3,
      {"org/missing", (folder / "hub/models--org--missing").string(), "hf download org/missing"});
  const fs::path empty = folder / "empty";
  fs::create_directories(empty);
  expect_failure(run(empty.string()), 3, {empty.string(), "config.json"});
  expect_failure(run("org/missing", {{"HOME", std::nullopt}}), 3, {"HOME"});
  expect_failure(run("/nowhere/model"), 3, {"/nowhere/model"});
  // What is there is named: the folder to look into, the folder of a file.
  fs::create_directory(folder / "empty");
  expect_failure(run((folder / "empty").string()), 3, {"ls " + (folder / "empty").string()});
  expect_failure(run((snapshot / "config.json").string()), 3,
                 {"pass the folder, -m " + snapshot.string()});
  expect_failure(run(""), 2, {"-m"});
}

TEST_F(ModelLookup, NothingIsWrittenIntoTheCache) {
  const auto listing = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
      names.push_back(entry.path().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const auto before = listing();
  expect_success(run("org/toy"), "Hi");
  EXPECT_EQ(listing(), before);
}

TEST_F(ModelLookup, LinksIntoBlobsAreFollowed) {
  fs::rename(snapshot / "model.safetensors", repository / "blobs/weights");
  fs::create_symlink("../../blobs/weights", snapshot / "model.safetensors");
  expect_success(run("org/toy"), "Hi");
}

TEST_F(ModelLookup, WithoutANameItIsTheDemonstrationModelBesideTheProgram) {
  const ProcessResult result =
      fut({"run", "--raw", "-p", "Once upon a time", "-n", "4", "--greedy", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(json_of(result).at("model").get<std::string>(), {"share/fut/demo-6m"});
  // Found from any folder, and through a link to the program.
  fs::create_symlink(FUT_BINARY, folder / "link");
  ProcessOptions options;
  options.arguments = {"-c", "cd / && exec " + (folder / "link").string() +
                                 " run --raw -p 'Once upon a time' -n 4 --greedy"};
  const ProcessResult linked = run_process("/bin/sh", on_cpu_in_f32(options));
  EXPECT_EQ(linked.out, json_of(result).at("text").get<std::string>());
  // A copy elsewhere has none beside it.
  fs::copy_file(FUT_BINARY, folder / "copy");
  options.arguments = {"run", "--raw", "-p", "x"};
  expect_failure(run_process(folder / "copy", on_cpu_in_f32(options)), 3,
                 {"share/fut/demo-6m", "-m"});
}

}  // namespace
}  // namespace fut::test
