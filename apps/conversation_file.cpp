// See the header.
#include "apps/conversation_file.h"

#include <filesystem>
#include <unistd.h>

#include "apps/json_input.h"
#include "apps/output.h"
#include "apps/text_input.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

std::string text_field(const Json& entry, const char* key, const std::string& path,
                       std::size_t number) {
  const auto found = entry.is_object() ? entry.find(key) : entry.end();
  if (!entry.is_object() || found == entry.end() || !found->is_string()) {
    throw data_error("{}: message {} is not an object with a text as its {}", path, number, key);
  }
  return found->get<std::string>();
}

}  // namespace

std::vector<ChatMessage> read_conversation(const std::string& path) {
  const Json list = parse_json_input(read_whole_file(path), path + ": the file");
  if (!list.is_array()) {
    throw data_error("{}: a list of messages is wanted, found {}", path, list.type_name());
  }
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    const std::size_t number = messages.size() + 1;
    messages.push_back(
        {text_field(entry, "role", path, number), text_field(entry, "content", path, number)});
  }
  return messages;
}

void write_conversation(const std::string& path, const std::vector<ChatMessage>& messages,
                        bool replace) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!replace && fs::exists(path, error)) {
    throw usage_error("{}: is there already; give another name", path);
  }
  Json list = Json::array();
  for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  // What is replaced keeps its place and its mode: behind a link lies the file, and it may be private.
  fs::path target = path;
  if (fs::is_symlink(path, error)) target = fs::weakly_canonical(path, error);
  const fs::file_status before = fs::status(target, error);
  const std::string aside = target.string() + "." + std::to_string(::getpid());
  try {
    Output output(aside);
    if (fs::is_regular_file(before)) fs::permissions(aside, before.permissions());
    output.write(list.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    output.finish();
    fs::rename(aside, target);
  } catch (const fs::filesystem_error& e) {
    fs::remove(aside, error);
    throw runtime_failure("{}: {}", path, e.code().message());
  } catch (const Error& e) {
    fs::remove(aside, error);
    const std::string_view message = e.what();  // of a file that nobody asked for
    if (!message.starts_with(aside)) throw;
    throw Error(e.kind(), path + std::string(message.substr(aside.size())));
  } catch (...) {
    fs::remove(aside, error);
    throw;
  }
}

}  // namespace fut::app
