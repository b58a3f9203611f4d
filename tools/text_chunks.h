// A text divided into chunks of one context each, for perplexity and imatrix. Throws Error(usage) if the text
// is too short and Error(io) if it cannot be read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model.h"
#include "tools/options/options.h"

namespace tandem::tools {

struct ChunkOptions {
  std::string file;       // "-": stdin
  int32_t n_chunks = -1;  // maximum; -1: all
  int64_t n_least = 2;    // minimum that the text must have
  bool parse_special = false;
};

struct TextChunks {
  std::vector<int32_t> tokens;
  int64_t n_ctx = 0;     // tokens per chunk
  int64_t n_chunks = 0;  // chunks to process

  std::span<const int32_t> chunk(int64_t i) const { return std::span(tokens).subspan(i * n_ctx, n_ctx); }
};

// The chunk size for -c; warns if it exceeds the training context.
int64_t chunk_size(const ContextOptions& context, const Model& model);
TextChunks read_chunks(const ChunkOptions& options, int64_t n_ctx, const Vocab& vocab);

}  // namespace tandem::tools
