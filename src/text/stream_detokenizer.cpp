#include "text/stream_detokenizer.h"

#include "base/utf8.h"

namespace tandem {

std::string StreamDetokenizer::add(int32_t id) {
  const std::string piece = vocab_.token_to_piece(id, special_);
  std::string_view text = piece;
  if (vocab_.restarts_text(id)) {
    at_start_ = true;
  } else {
    if (at_start_ && text.starts_with(' ')) text.remove_prefix(1);
    at_start_ = false;
  }
  pending_ += text;
  return take_whole_characters();
}

std::string StreamDetokenizer::take_whole_characters() {
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Char next = next_utf8(rest);
    if (next.status == Utf8Status::incomplete) break;
    out += next.status == Utf8Status::valid ? rest.substr(0, next.n_bytes) : kReplacementCharacter;
    rest.remove_prefix(next.n_bytes);
  }
  pending_ = std::string(rest);
  return out;
}

std::string StreamDetokenizer::finish() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace tandem
