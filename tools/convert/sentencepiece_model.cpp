// Reads tokenizer.model, a SentencePiece ModelProto, as far as a GGUF vocabulary needs it.
//
// A protocol buffer is a sequence of fields, each a varint (number << 3 | kind) and a value. Kinds: 0 a
// varint, 1 eight bytes, 2 a length (varint) and that many bytes, 5 four bytes. ModelProto: 1 pieces {1 text,
// 2 score, 3 type}, 2 trainer {3 kind, 40 unk, 41 bos, 42 eos, 43 pad}, 3 normalizer {3 add_dummy_prefix, 4
// remove_extra_whitespaces}.
#include <cstring>

#include "base/error.h"
#include "tools/convert/tokenizer.h"

namespace tandem::tools {
namespace {

constexpr uint64_t kBpe = 2;
constexpr const char* kKinds[] = {"none", "unigram", "bpe", "word", "char"};

// Iterates over the fields of a message; never reads past its end.
class Message {
 public:
  Message(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  // Advances to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    kind_ = static_cast<int>(tag & 7);
    switch (kind_) {
      case 0: number_ = varint(); break;
      case 1: data_ = take(8); break;
      case 2: data_ = take(varint()); break;
      case 5: data_ = take(4); break;
      default: bad(format("field of kind {}", kind_));
    }
    return true;
  }

  uint64_t field() const { return field_; }
  uint64_t number() const { return kind_ == 0 ? number_ : (bad("a field that is not a number"), 0); }
  std::string_view bytes() const { return kind_ == 2 ? data_ : (bad("a field that is not a string"), data_); }
  float real() const {
    if (kind_ != 5) bad("a field that is not a float");
    float x;
    std::memcpy(&x, data_.data(), sizeof x);
    return x;
  }

 private:
  [[noreturn]] void bad(const std::string& found) const {
    throw_error(ErrorCode::bad_file, "{}: found {} near byte {} of a message, needed a SentencePiece model",
                source_, found, at_);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) bad("the end");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    bad("a number of more than 64 bits");
  }
  std::string_view take(uint64_t n) {
    if (n > bytes_.size() - at_) bad("a field longer than its message");
    const std::string_view part = bytes_.substr(at_, static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
    return part;
  }

  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0;
  uint64_t field_ = 0, number_ = 0;
  int kind_ = 0;
  std::string_view data_;
};

Token read_piece(std::string_view bytes, const std::string& source, size_t id) {
  Token token;
  Message message(bytes, source);
  uint64_t type = 1;
  while (message.next()) {
    if (message.field() == 1) token.text = message.bytes();
    if (message.field() == 2) token.score = message.real();
    if (message.field() == 3) type = message.number();
  }
  if (type < 1 || type > 6) {
    throw_error(ErrorCode::bad_file, "{}: piece {}: found type {}, needed 1 to 6", source, id, type);
  }
  token.type = static_cast<TokenType>(type);  // same numbers
  if (token.text.empty()) token.text = format("[PAD{}]", id);
  return token;
}

struct Trainer {
  uint64_t kind = 1;  // unigram
  int64_t unk = 0, bos = 1, eos = 2, pad = -1;
};

Trainer read_trainer(std::string_view bytes, const std::string& source) {
  Trainer trainer;
  Message message(bytes, source);
  while (message.next()) {
    const auto id = [&] { return static_cast<int32_t>(static_cast<int64_t>(message.number())); };
    if (message.field() == 3) trainer.kind = message.number();
    if (message.field() == 40) trainer.unk = id();
    if (message.field() == 41) trainer.bos = id();
    if (message.field() == 42) trainer.eos = id();
    if (message.field() == 43) trainer.pad = id();
  }
  return trainer;
}

}  // namespace

VocabData read_sentencepiece_model(std::string_view bytes, const std::string& source) {
  VocabData data;
  data.source = source;
  data.kind = TokenizerKind::spm;
  data.pre = "default";
  data.add_space_prefix = Flag::on;
  data.remove_extra_whitespaces = Flag::on;
  Trainer trainer;
  Message message(bytes, source);
  while (message.next()) {
    if (message.field() == 1) data.tokens.push_back(read_piece(message.bytes(), source, data.tokens.size()));
    if (message.field() == 2) trainer = read_trainer(message.bytes(), source);
    if (message.field() != 3) continue;
    Message normalizer(message.bytes(), source);
    while (normalizer.next()) {
      if (normalizer.field() == 3) data.add_space_prefix = normalizer.number() ? Flag::on : Flag::off;
      if (normalizer.field() == 4) data.remove_extra_whitespaces = normalizer.number() ? Flag::on : Flag::off;
    }
  }
  if (data.tokens.empty())
    throw_error(ErrorCode::bad_file, "{}: found no pieces, needed a SentencePiece model", source);
  if (trainer.kind != kBpe) {
    const char* kind = trainer.kind < std::size(kKinds) ? kKinds[trainer.kind] : "another kind";
    throw_error(ErrorCode::bad_file, "{}: found a SentencePiece model of kind {}, needed bpe", source, kind);
  }
  const auto role = [&](int64_t id) {
    return id >= 0 && id < static_cast<int64_t>(data.tokens.size()) ? static_cast<int32_t>(id) : kNoToken;
  };
  data.special.unk = role(trainer.unk);
  data.special.bos = role(trainer.bos);
  data.special.eos = role(trainer.eos);
  data.special.pad = role(trainer.pad);
  return data;
}

}  // namespace tandem::tools
