#include "sample/grammar/chars.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr CodeRange kSurrogates = {0xd800, 0xdfff};
constexpr uint32_t kLastOfLength[] = {0x7f, 0x7ff, 0xffff, kLastCodePoint};  // 1, 2, 3, 4 bytes

size_t utf8_length(uint32_t code_point) {
  size_t n = 1;
  while (code_point > kLastOfLength[n - 1]) ++n;
  return n;
}

std::array<uint8_t, 4> encode(uint32_t code_point, size_t n) {
  constexpr uint8_t kLead[] = {0x00, 0xc0, 0xe0, 0xf0};
  std::array<uint8_t, 4> bytes{};
  for (size_t i = n - 1; i > 0; --i, code_point >>= 6)
    bytes[i] = static_cast<uint8_t>(0x80 | (code_point & 0x3f));
  bytes[0] = static_cast<uint8_t>(kLead[n - 1] | code_point);
  return bytes;
}

// Splits a range until each piece is one sequence: its characters have the same length, and after the first
// byte that differs every continuation byte occurs.
void split(CodeRange range, std::vector<ByteSequence>& out) {
  const size_t n = utf8_length(range.low);
  if (range.high > kLastOfLength[n - 1]) {
    split({range.low, kLastOfLength[n - 1]}, out);
    return split({kLastOfLength[n - 1] + 1, range.high}, out);
  }
  for (size_t i = 1; i < n; ++i) {
    const uint32_t rest = (1u << (6 * i)) - 1;
    if ((range.low & ~rest) == (range.high & ~rest)) continue;
    if ((range.low & rest) != 0) {
      split({range.low, range.low | rest}, out);
      return split({(range.low | rest) + 1, range.high}, out);
    }
    if ((range.high & rest) != rest) {
      split({range.low, (range.high & ~rest) - 1}, out);
      return split({range.high & ~rest, range.high}, out);
    }
  }
  const auto low = encode(range.low, n), high = encode(range.high, n);
  ByteSequence sequence;
  sequence.n_bytes = n;
  for (size_t i = 0; i < n; ++i) sequence.bytes[i] = {low[i], high[i]};
  out.push_back(sequence);
}

}  // namespace

std::vector<CodeRange> normalized(std::vector<CodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](CodeRange a, CodeRange b) { return a.low < b.low; });
  std::vector<CodeRange> merged;
  for (const CodeRange& r : ranges) {
    if (!merged.empty() && r.low <= merged.back().high + 1) {
      merged.back().high = std::max(merged.back().high, r.high);
    } else {
      merged.push_back(r);
    }
  }
  std::vector<CodeRange> out;
  for (const CodeRange& r : merged) {
    if (r.low < kSurrogates.low) out.push_back({r.low, std::min(r.high, kSurrogates.low - 1)});
    if (r.high > kSurrogates.high) out.push_back({std::max(r.low, kSurrogates.high + 1), r.high});
  }
  return out;
}

std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> out;
  uint32_t next = 0;
  for (const CodeRange& r : ranges) {
    if (r.low > next) out.push_back({next, r.low - 1});
    next = r.high + 1;
  }
  if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
  return normalized(std::move(out));
}

std::vector<ByteSequence> utf8_sequences(const std::vector<CodeRange>& ranges) {
  std::vector<ByteSequence> out;
  for (const CodeRange& r : ranges) split(r, out);
  return out;
}

void append_utf8(std::string& text, uint32_t code_point) {
  const size_t n = utf8_length(code_point);
  const auto bytes = encode(code_point, n);
  text.append(reinterpret_cast<const char*>(bytes.data()), n);
}

}  // namespace tandem
