// Differences between two model files: metadata; dtypes, shapes and values of tensors. The number of parts
// and the order of tensors do not count.
//
// Results hold views into the files. Throws what reading throws.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"

namespace tandem::tools {

struct MetadataDifference {
  std::string_view key;
  const Value* a;  // nullptr: only in b
  const Value* b;
};

struct TensorDifference {
  const TensorInfo* a;  // nullptr: only in b
  const TensorInfo* b;
  // Differences of values, if both are readable and have the same shape. max_abs is infinite if one is not
  // finite.
  bool compared = false;
  int64_t n_different = 0;
  double max_abs = 0, rms = 0;
  double rms_of_a = 0;  // of the values of a, for comparison
};

struct FileDifference {
  std::vector<MetadataDifference> metadata;
  std::vector<TensorDifference> tensors;
  size_t n_same_metadata = 0, n_same_tensors = 0;

  bool none() const { return metadata.empty() && tensors.empty(); }
};

FileDifference compare(const GgufFile& a, const GgufFile& b);

std::string difference_page(const FileDifference& difference, const std::string& a, const std::string& b);
std::string difference_json(const FileDifference& difference, const std::string& a, const std::string& b);

}  // namespace tandem::tools
