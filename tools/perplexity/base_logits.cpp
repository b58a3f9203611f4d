#include "tools/perplexity/base_logits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "tools/perplexity/score.h"

namespace tandem::tools {
namespace {

constexpr size_t kHeaderBytes = kBaseLogitsMagic.size() + 3 * sizeof(int32_t);
constexpr float kRange = 16.0f;  // probabilities below e^-16 of the largest are clamped to it
constexpr float kLevels = 65535.0f;

size_t row_values(int64_t n_vocab) {
  return static_cast<size_t>(n_vocab + n_vocab % 2);
}

}  // namespace

PackedLogits pack_logits(std::span<const float> logits, std::span<uint16_t> room) {
  const auto [lowest, highest] = std::minmax_element(logits.begin(), logits.end());
  const float max = *highest, min = std::max(*lowest, max - kRange);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  const float scale = (max - min) / kLevels;
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (size_t i = 0; i < logits.size(); ++i) {
    room[i] = logits[i] > min ? static_cast<uint16_t>(std::lround(inverse * (logits[i] - min))) : uint16_t{0};
  }
  return {scale, static_cast<float>(min - max - std::log(sum)), room.first(logits.size())};
}

BaseLogitsWriter::BaseLogitsWriter(const std::string& path, const TextChunks& chunks, int64_t n_vocab)
    : file_(path), room_(row_values(n_vocab)) {
  const std::array header{static_cast<int32_t>(chunks.n_ctx), static_cast<int32_t>(n_vocab),
                          static_cast<int32_t>(chunks.n_chunks)};
  file_.write(std::as_bytes(std::span(kBaseLogitsMagic)));
  file_.write(std::as_bytes(std::span(header)));
  file_.write(std::as_bytes(std::span(chunks.tokens).first(chunks.n_chunks * chunks.n_ctx)));
}

void BaseLogitsWriter::add(std::span<const float> logits) {
  const PackedLogits packed = pack_logits(logits, room_);
  const std::array numbers{packed.scale, packed.min};
  file_.write(std::as_bytes(std::span(numbers)));
  file_.write(std::as_bytes(std::span(room_)));
}

void BaseLogitsWriter::finish() {
  file_.publish();
}

size_t BaseLogitsReader::row_bytes() const {
  return 2 * sizeof(float) + row_values(n_vocab_) * sizeof(uint16_t);
}

BaseLogitsReader::BaseLogitsReader(const std::string& path)
    : file_(MappedFile::open(path, {.prefetch = false})) {
  const std::span<const std::byte> bytes = file_.bytes();
  if (bytes.size() < kHeaderBytes ||
      std::memcmp(bytes.data(), kBaseLogitsMagic.data(), kBaseLogitsMagic.size()) != 0) {
    throw_error(ErrorCode::bad_file, "{}: not a file of saved logits, which starts with {:.8}", path,
                kBaseLogitsMagic.data());
  }
  int32_t header[3];
  std::memcpy(header, bytes.data() + kBaseLogitsMagic.size(), sizeof header);
  const auto [n_ctx, n_vocab, n_chunks] = header;
  if (n_ctx < 3 || n_vocab < 1 || n_chunks < 1) {
    throw_error(ErrorCode::bad_file, "{}: found chunks of {} tokens, {} chunks, a vocabulary of {}", path,
                n_ctx, n_chunks, n_vocab);
  }
  n_vocab_ = n_vocab;
  chunks_.n_ctx = n_ctx;
  chunks_.n_chunks = n_chunks;
  const auto n_tokens = static_cast<size_t>(n_ctx) * static_cast<size_t>(n_chunks);
  const auto n_rows = static_cast<size_t>(n_ctx - first_scored(n_ctx)) * static_cast<size_t>(n_chunks);
  const auto token_bytes = checked_mul(n_tokens, sizeof(int32_t));
  const auto data_bytes = checked_mul(n_rows, row_bytes());
  const auto both = token_bytes && data_bytes ? checked_add(*token_bytes, *data_bytes) : std::nullopt;
  const auto needed = both ? checked_add(*both, kHeaderBytes) : std::nullopt;
  if (!needed || *needed != bytes.size()) {
    throw_error(ErrorCode::bad_file, "{}: found {} bytes, needed {} for {} chunks of {} tokens", path,
                bytes.size(), needed.value_or(UINT64_MAX), n_chunks, n_ctx);
  }
  chunks_.tokens.resize(n_tokens);
  std::memcpy(chunks_.tokens.data(), bytes.data() + kHeaderBytes, n_tokens * sizeof(int32_t));
  for (const int32_t id : chunks_.tokens) {
    if (id >= 0 && id < n_vocab) continue;
    throw_error(ErrorCode::bad_file, "{}: token id {} is not in the vocabulary of {}", path, id, n_vocab);
  }
  rows_ = bytes.data() + kHeaderBytes + n_tokens * sizeof(int32_t);
  room_.resize(row_values(n_vocab_));
}

PackedLogits BaseLogitsReader::row(int64_t i) {
  const std::byte* from = rows_ + static_cast<size_t>(i) * row_bytes();
  PackedLogits packed{};
  std::memcpy(&packed.scale, from, sizeof(float));
  std::memcpy(&packed.min, from + sizeof(float), sizeof(float));
  std::memcpy(room_.data(), from + 2 * sizeof(float), room_.size() * sizeof(uint16_t));
  packed.q = std::span(room_).first(n_vocab_);
  if (!std::isfinite(packed.scale) || !std::isfinite(packed.min)) {
    throw_error(ErrorCode::bad_file, "{}: the logits of scored token {} are not finite", path(), i);
  }
  return packed;
}

}  // namespace tandem::tools
