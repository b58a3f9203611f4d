// A text cut into chunks of as many tokens as a context holds: what perplexity and imatrix work on. Throws
// Error(usage) when it is too short and Error(io) when it cannot be read.
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
  int32_t n_chunks = -1;  // at most, -1: all
  int64_t n_least = 2;    // chunks that the text must have
  bool parse_special = false;
};

struct TextChunks {
  std::vector<int32_t> tokens;
  int64_t n_ctx = 0;     // tokens of a chunk
  int64_t n_chunks = 0;  // to work on

  std::span<const int32_t> chunk(int64_t i) const {
    return std::span(tokens).subspan(static_cast<size_t>(i * n_ctx), static_cast<size_t>(n_ctx));
  }
};

// The size of a chunk for -c; warns when it is more than the model was trained with.
int64_t chunk_size(const ContextOptions& context, const Model& model);
TextChunks read_chunks(const ChunkOptions& options, int64_t n_ctx, const Vocab& vocab);

}  // namespace tandem::tools
