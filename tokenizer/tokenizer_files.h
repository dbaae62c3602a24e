// The readers of the three kinds of file; each makes the parts of a tokenizer from a file's bytes.
// Internal to tokenizer/.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer_config.h"
#include "tokenizer/tokenizer_impl.h"

namespace fut {

// tokenizer.json. Throws Data: not JSON (file and byte), a model or a part of a type that is not
// supported (named), ids or tokens given twice, ids out of range, merges of unknown tokens.
[[nodiscard]] TokenizerParts read_hf_tokenizer(std::string_view text,
                                               const std::filesystem::path& path,
                                               const TokenizerConfig& config);

// Llama 3's rank table: a line for each token, base64 and rank. Throws Data with the line.
// Special tokens are those of tokenizer_config.json, else the 256 of Llama 3.1 behind the table.
[[nodiscard]] TokenizerParts read_rank_table(std::string_view text,
                                             const std::filesystem::path& path,
                                             const TokenizerConfig& config);

// Whether a rank table it is, by its first bytes: text, not a protobuf.
[[nodiscard]] bool looks_like_rank_table(std::string_view bytes);

// A SentencePiece model. Throws Data: not such a model, damaged, or one the library refuses.
[[nodiscard]] TokenizerParts read_sentencepiece(std::string_view bytes,
                                                const std::filesystem::path& path,
                                                const TokenizerConfig& config);

// Gives added tokens their ids, spelt as they are, and marks the special ones. Throws Data where an
// id or a spelling is taken by something else. `count`: all tokens of the file, for check_id.
void add_added_tokens(std::span<const AddedToken> tokens, std::size_t count, Vocabulary& vocabulary,
                      const std::filesystem::path& path);

// The id of an added token or of an ordinary one by its spelling.
[[nodiscard]] std::optional<TokenId> find_token(const TokenizerParts& parts,
                                                std::string_view spelling);

// Fills bos, eos and adds_bos: tokenizer_config.json decides where it speaks, `parts` holds what
// the tokenizer's own file says or its kind is used to. Throws Data where the configuration asks
// for a BOS and no token is known for it.
void apply_config(const TokenizerConfig& config, TokenizerParts& parts);

}  // namespace fut
