// What two model files differ in: metadata, and tensors in dtype, shape and values. In how many files a model
// lies makes no difference, nor does the order in them.
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
  // Of the values, where both can be told and have one shape. The maximum is infinite where one is no number.
  bool compared = false;
  int64_t n_different = 0;
  double max_abs = 0, rms = 0;
  double rms_of_a = 0;  // of the values themselves, to judge by
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
