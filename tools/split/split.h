// Copies a model into as many parts as asked for: one to merge a split model, several to split one. Tensors
// and metadata stay as they are.
//
// Memory: a buffer a part. The files appear under their names only when all are complete. Throws Error(io)
// when writing fails, Error(usage) when a part would overwrite the input, Error(interrupted) after Ctrl-C.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"
#include "gguf/split_writer.h"

namespace tandem::tools {

struct PlannedPart {
  std::string path;
  size_t n_tensors;
  uint64_t n_bytes;  // of tensor data
};

// "2G", "500M" as llama-gguf-split means them: powers of 1000. Throws Error(usage).
uint64_t parse_split_size(const std::string& option, const std::string& text);

// What write_parts would make; no limits make one part.
std::vector<PlannedPart> plan_parts(const GgufFile& file, const SplitLimits& limits, const std::string& path);

using CopyProgress = std::function<void(const TensorInfo& tensor, uint64_t n_bytes_done, bool tensor_done)>;
void write_parts(const GgufFile& file, const SplitLimits& limits, const std::string& path,
                 const CopyProgress& progress = {});

}  // namespace tandem::tools
