// Copies a model into one file (to merge a split model) or into several parts (to split it). Tensors and
// metadata stay unchanged.
//
// Memory: one buffer per part. The files get their names only when all are complete. Throws Error(io) when
// writing fails, Error(usage) when a part would overwrite the input, and Error(interrupted) after Ctrl-C.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"
#include "gguf/split_writer.h"

namespace tandem::tools {

struct SplitPart {
  std::string path;
  size_t n_tensors;
  uint64_t n_bytes;  // of tensor data
};

// Parses "2G" or "500M" as llama-gguf-split does: powers of 1000. Throws Error(usage).
uint64_t parse_split_size(const std::string& option, const std::string& text);

// Returns the parts that write_parts makes; without limits one.
std::vector<SplitPart> list_parts(const GgufFile& file, const SplitLimits& limits, const std::string& path);

using CopyProgress = std::function<void(const TensorInfo& tensor, uint64_t n_bytes_done, bool tensor_done)>;
void write_parts(const GgufFile& file, const SplitLimits& limits, const std::string& path,
                 const CopyProgress& progress = {});

}  // namespace tandem::tools
