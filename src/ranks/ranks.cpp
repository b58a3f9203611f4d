#include "ranks/ranks.h"

#include <cstring>

#include "base/error.h"

namespace tandem {

void Ranks::receive_into(int from, int tag, std::span<std::byte> bytes) {
  const RankMessage message = receive(from, tag);
  if (message.bytes.size() != bytes.size()) {
    throw_error(ErrorCode::io, "{}: sent a message of {} bytes, {} needed {}", name_of(message.from),
                message.bytes.size(), name_of(rank()), bytes.size());
  }
  if (!bytes.empty()) memcpy(bytes.data(), message.bytes.data(), bytes.size());
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(const RankMessage& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

std::string RankWait::text() const {
  switch (kind) {
    case Kind::nothing: return "for nothing";
    case Kind::receive:
      return from == kAnyRank ? "to receive from any rank" : format("to receive from rank {}", from);
    case Kind::all_reduce: return "in an all-reduce";
    case Kind::all_gather: return "in an all-gather";
    case Kind::broadcast: return "in a broadcast";
    case Kind::barrier: return "in a barrier";
  }
  return "";
}

std::string deadlock_text(std::span<const std::optional<RankWait>> waits) {
  std::string text = "ranks wait for each other: ";
  for (size_t i = 0; i < waits.size(); ++i) {
    if (i > 0) text += ", ";
    text += format("rank {} ", i) + (waits[i] ? waits[i]->text() : "has ended");
  }
  return text;
}

}  // namespace tandem
