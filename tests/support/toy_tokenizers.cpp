// Spells a toy vocabulary as tokenizer.json, as a rank table and as a SentencePiece protobuf. The
// demonstration model's files serve as patterns for what does not depend on the vocabulary.
#include "tests/support/toy_tokenizers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fmt/format.h>
#include <map>
#include <set>
#include <stdexcept>

#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

void append_utf8(std::string& out, std::uint32_t code_point) {
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else {  // two bytes are enough for all that the byte alphabet uses
    out += static_cast<char>(0xC0U | (code_point >> 6));
    out += static_cast<char>(0x80U | (code_point & 0x3FU));
  }
}

// The character that stands for a byte in a byte-level tokenizer.json: itself where it is visible
// in Latin-1, else the next free one from U+0100 on.
const std::array<std::string, 256>& byte_alphabet() {
  static const std::array<std::string, 256> alphabet = [] {
    std::array<std::string, 256> result;
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool visible =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      append_utf8(result[byte], visible ? byte : next++);
    }
    return result;
  }();
  return alphabet;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += byte_alphabet()[static_cast<unsigned char>(c)];
  return out;
}

std::string unspell_bytes(const std::string& text) {
  static const std::map<std::string, char> values = [] {
    std::map<std::string, char> result;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      result[byte_alphabet()[byte]] = static_cast<char>(byte);
    }
    return result;
  }();
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = (static_cast<unsigned char>(text[i]) & 0x80U) != 0 ? 2 : 1;
    out += values.at(text.substr(i, length));
    i += length;
  }
  return out;
}

nlohmann::json read_demo_json(const char* name) {
  return nlohmann::json::parse(read_file(source_path("configs/demo-6m") / name));
}

const nlohmann::json& demo_tokenizer() {
  static const nlohmann::json parsed = read_demo_json("tokenizer.json");
  return parsed;
}

// The demonstration model's merges, most important first, as bytes.
std::vector<std::pair<std::string, std::string>> demo_merges(std::size_t count) {
  const nlohmann::json& merges = demo_tokenizer().at("model").at("merges");
  std::vector<std::pair<std::string, std::string>> result;
  for (std::size_t i = 0; i < count; ++i) {
    const auto pair = merges.at(i).get<std::vector<std::string>>();
    result.emplace_back(unspell_bytes(pair.at(0)), unspell_bytes(pair.at(1)));
  }
  return result;
}

nlohmann::json added_token(const std::string& content) {
  return {{"content", content}, {"lstrip", false},      {"normalized", false},
          {"rstrip", false},    {"single_word", false}, {"special", true}};
}

nlohmann::json bos_processor(const std::string& bos, std::int32_t id) {
  const nlohmann::json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const nlohmann::json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const nlohmann::json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  return {{"type", "TemplateProcessing"},
          {"single", {special, text}},
          {"pair", {special, text, second}},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", {id}}, {"tokens", {bos}}}}}}};
}

// ---- the protobuf wire format, as much as a SentencePiece model needs ---------------------------

enum class PieceType : std::uint64_t {
  Normal = 1,
  Unknown = 2,
  Control = 3,
  UserDefined = 4,
  Byte = 6
};

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7FU) | 0x80U);
  out += static_cast<char>(value);
}

void put_number(std::string& out, std::uint64_t field, std::uint64_t value) {
  put_varint(out, field << 3);
  put_varint(out, value);
}

void put_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  put_varint(out, field << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_float(std::string& out, std::uint64_t field, float value) {
  put_varint(out, field << 3 | 5);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (unsigned shift = 0; shift < 32; shift += 8) out += static_cast<char>(bits >> shift & 0xFFU);
}

// Field numbers of sentencepiece_model.proto: ModelProto.pieces = 1 { piece 1, score 2, type 3 }.
void put_piece(std::string& model, std::string_view piece, float score, PieceType type) {
  std::string message;
  put_bytes(message, 1, piece);
  put_float(message, 2, score);
  put_number(message, 3, static_cast<std::uint64_t>(type));
  put_bytes(model, 1, message);
}

// trainer_spec = 2 { model_type 3, vocab_size 4, byte_fallback 35, unk/bos/eos/pad_id 40..43 } and
// normalizer_spec = 3 { name 1, add_dummy_prefix 3, remove_extra_whitespaces 4,
// escape_whitespaces 5 }.
void put_specs(std::string& model, int vocab_size) {
  constexpr std::uint64_t kBpe = 2;
  std::string trainer;
  put_number(trainer, 3, kBpe);
  put_number(trainer, 4, static_cast<std::uint64_t>(vocab_size));
  put_number(trainer, 35, 1);
  put_number(trainer, 40, 0);
  put_number(trainer, 41, kSentencePieceBos);
  put_number(trainer, 42, kSentencePieceEos);
  put_number(trainer, 43, ~std::uint64_t{0});  // -1: none
  put_bytes(model, 2, trainer);
  std::string normalizer;
  put_bytes(normalizer, 1, "identity");
  put_number(normalizer, 3, 1);
  put_number(normalizer, 4, 0);
  put_number(normalizer, 5, 1);
  put_bytes(model, 3, normalizer);
}

std::string with_meta_symbols(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == ' ' ? std::string("\xE2\x96\x81") : std::string(1, c);
  return out;
}

bool is_printable_ascii(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

}  // namespace

std::int32_t ToyVocabulary::id(std::string_view bytes) const {
  const auto special = std::find(specials.begin(), specials.end(), bytes);
  if (special != specials.end()) {
    return static_cast<std::int32_t>(pieces.size()) +
           static_cast<std::int32_t>(special - specials.begin());
  }
  const auto piece = std::find(pieces.begin(), pieces.end(), bytes);
  if (piece == pieces.end()) {
    throw std::out_of_range(fmt::format("no token '{}' in the toy vocabulary", bytes));
  }
  return static_cast<std::int32_t>(piece - pieces.begin());
}

const std::vector<std::string>& toy_special_tokens() {
  static const std::vector<std::string> tokens = {
      "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
      "<|eot_id|>",        "<|eom_id|>",      "<|python_tag|>"};
  return tokens;
}

ToyVocabulary merged_vocabulary(int size) {
  ToyVocabulary vocabulary;
  vocabulary.specials = toy_special_tokens();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.pieces.emplace_back(1, static_cast<char>(byte));
  }
  const std::size_t merged = static_cast<std::size_t>(size) - 256 - vocabulary.specials.size();
  vocabulary.merges = demo_merges(merged);
  for (const auto& [left, right] : vocabulary.merges) vocabulary.pieces.push_back(left + right);
  return vocabulary;
}

nlohmann::json tokenizer_json(const ToyVocabulary& vocabulary) {
  nlohmann::json result = demo_tokenizer();
  nlohmann::json& model = result.at("model");
  model["vocab"] = nlohmann::json::object();
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    model["vocab"][spell_bytes(vocabulary.pieces[id])] = id;
  }
  model["merges"] = nlohmann::json::array();
  for (const auto& [left, right] : vocabulary.merges) {
    model["merges"].push_back({spell_bytes(left), spell_bytes(right)});
  }
  result["added_tokens"] = nlohmann::json::array();
  for (const std::string& special : vocabulary.specials) {
    nlohmann::json token = added_token(special);
    token["id"] = vocabulary.id(special);
    result["added_tokens"].push_back(token);
  }
  const std::string& bos = vocabulary.specials.front();
  result.at("post_processor").at("processors").at(1) = bos_processor(bos, vocabulary.id(bos));
  return result;
}

nlohmann::json tokenizer_config_json(const ToyVocabulary& vocabulary, bool with_chat_template) {
  nlohmann::json result = read_demo_json("tokenizer_config.json");
  result["added_tokens_decoder"] = nlohmann::json::object();
  for (const std::string& special : vocabulary.specials) {
    result["added_tokens_decoder"][std::to_string(vocabulary.id(special))] = added_token(special);
  }
  if (!with_chat_template) result.erase("chat_template");
  return result;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      const bool there = i + j < bytes.size();
      group = group << 8 | (there ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      const bool there = i + j <= bytes.size();  // digit j needs byte i + j - 1
      out += there ? kDigits[group >> (18 - 6 * j) & 63U] : '=';
    }
  }
  return out;
}

std::string rank_table(const ToyVocabulary& vocabulary) {
  std::string out;
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    out += fmt::format("{} {}\n", base64(vocabulary.pieces[id]), id);
  }
  return out;
}

std::string sentencepiece_model(int size, const std::vector<std::string>& words) {
  std::string model;
  std::set<std::string> used;
  int count = 0;
  const auto put = [&](const std::string& piece, float score, PieceType type) {
    if (count == size || !used.insert(piece).second) return;
    put_piece(model, piece, score, type);
    ++count;
  };
  put("<unk>", 0, PieceType::Unknown);
  put("<s>", 0, PieceType::Control);
  put("</s>", 0, PieceType::Control);
  for (int byte = 0; byte < 256; ++byte) put(fmt::format("<0x{:02X}>", byte), 0, PieceType::Byte);
  for (const std::string& word : words) put(with_meta_symbols(word), 0, PieceType::UserDefined);
  // A character needs no merge, so its score is the worst.
  for (char c = 0x20; c < 0x7F; ++c) {
    put(with_meta_symbols(std::string(1, c)), -1e6F, PieceType::Normal);
  }
  float score = 0;
  for (const auto& [left, right] : demo_merges(2 * static_cast<std::size_t>(size))) {
    if (is_printable_ascii(left + right)) {
      put(with_meta_symbols(left + right), score, PieceType::Normal);
      score -= 1;
    }
  }
  put_specs(model, size);
  return model;
}

}  // namespace fut::test
