// The character map of a SentencePiece model: a trie of what is replaced, and the texts that replace it.
// The library follows it without looking where it leads; here it is followed once, everywhere.
// Internal to tokenizer/.
#pragma once

#include <string_view>

namespace fut {

// Whether no text leads the library out of `map` (precompiled_charsmap): every step from every place
// that can be reached stays within the trie, and every value is the beginning of a text that ends.
[[nodiscard]] bool is_sound_character_map(std::string_view map);

}  // namespace fut
