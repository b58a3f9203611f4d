// Checkpoint: all tensors of a model folder, from model.safetensors, the shards of an index, or any other
// *.safetensors.
//
// Owns the open files. Immutable after opening; any thread may read. Throws Error(bad_file) for missing
// shards, an index that contradicts its shards, duplicate tensors, and what SafetensorsFile throws.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/convert/safetensors.h"

namespace tandem::tools {

class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  // By name, without the prefix of a text model inside a larger one ("language_model.").
  const std::map<std::string, const SourceTensor*, std::less<>>& tensors() const { return tensors_; }
  const SourceTensor* find(std::string_view name) const;  // nullptr when absent
  // The same of a tensor that may also be stored as NAME_packed, two elements in a byte.
  const SourceTensor* find_stored(const std::string& name) const;
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

 private:
  void open_shards(const std::string& folder, const std::string& index_path);
  void add(const SourceTensor& tensor);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SourceTensor*, std::less<>> tensors_;
};

}  // namespace tandem::tools
