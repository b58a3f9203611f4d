// A file with a model's predictions for every scored token of a text, to compare another model (its
// quantization) with it: the file of llama-perplexity's --kl-divergence-base.
//
// Layout, little-endian: "_logits_", i32 n_ctx, n_vocab, n_chunks, tokens [n_chunks, n_ctx] (as in the text,
// before BOS replaces the first); then a row for every scored token: f32 scale, f32 min, u16 q[n_vocab], and
// one more u16 if n_vocab is odd. log p(i) = scale * q[i] + min, at most 16 below the largest.
//
// The writer owns its file, which gets its name in finish(); the reader owns its mapping. Throw Error(io),
// and the reader Error(bad_file) for a malformed file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "gguf/mapped_file.h"
#include "tools/text_chunks.h"

namespace tandem::tools {

inline constexpr std::string_view kBaseLogitsMagic = "_logits_";  // starts the file

struct PackedLogits {
  float scale, min;
  std::span<const uint16_t> q;  // [n_vocab]

  float log_probability(size_t i) const { return scale * static_cast<float>(q[i]) + min; }
};

// Packs logits [n_vocab] into a row; q points into `room` [n_vocab].
PackedLogits pack_logits(std::span<const float> logits, std::span<uint16_t> room);

class BaseLogitsWriter {
 public:
  BaseLogitsWriter(const std::string& path, const TextChunks& chunks, int64_t n_vocab);
  void add(std::span<const float> logits);  // for the next scored token
  void finish();

 private:
  OutputFile file_;
  std::vector<uint16_t> room_;  // [n_vocab], rounded up to even
};

class BaseLogitsReader {
 public:
  explicit BaseLogitsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t n_vocab() const { return n_vocab_; }
  const TextChunks& chunks() const { return chunks_; }
  // Returns the row of scored token i, counted over all chunks. Valid until the next call.
  PackedLogits row(int64_t i);

 private:
  size_t row_bytes() const;

  MappedFile file_;
  int64_t n_vocab_ = 0;
  TextChunks chunks_;
  const std::byte* rows_ = nullptr;
  std::vector<uint16_t> room_;
};

}  // namespace tandem::tools
