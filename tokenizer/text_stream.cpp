// Holds back the unfinished character at the end of a stream of bytes; see text_stream.h. What can
// be unfinished lies in the last three bytes, so a push costs no more than its own bytes.
#include "tokenizer/text_stream.h"

#include <utility>

#include "tokenizer/utf8.h"

namespace fut {

std::string TextStream::push(std::string_view bytes) {
  std::string text = std::move(pending_);
  text.append(bytes);
  const std::size_t held = utf8::unfinished_tail(text);
  pending_.assign(text, text.size() - held, held);
  text.resize(text.size() - held);
  return text;
}

std::string TextStream::flush() {
  return std::exchange(pending_, {});
}

}  // namespace fut
