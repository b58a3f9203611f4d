// Checkpoint: all tensors of a model folder, whether they lie in model.safetensors, in the shards of an
// index, or in whatever *.safetensors there are.
//
// Owns the open files. Immutable after opening; any thread may read. Throws Error(bad_file) for missing
// shards, an index that does not agree with its shards and tensors that occur twice, and what SafetensorsFile
// throws.
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

  // By name, without the prefix of a text model that is part of a larger one ("language_model.").
  const std::map<std::string, const SourceTensor*, std::less<>>& tensors() const { return tensors_; }
  const SourceTensor* find(std::string_view name) const;  // nullptr when absent
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

 private:
  void open_shards(const std::string& folder, const std::string& index_path);
  void add(const SourceTensor& tensor);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SourceTensor*, std::less<>> tensors_;
};

}  // namespace tandem::tools
