// SplitWriter: writes a GGUF model as one file or as several parts that readers open as one.
//
// The parts of out.gguf are out-00001-of-00003.gguf and so on. The first has all the metadata; every part has
// split.no, split.count and split.tensors.count. Use it like GgufWriter: after the last add_tensor(), call
// split() or split_as() to write several parts. Memory: one buffer per part. Ownership: owns the temporary
// files; no final name changes before finish(). Not thread-safe. Throws Error(io) as GgufWriter does, and
// Error(usage) for more parts than the format can count.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/writer.h"

namespace tandem {

// The file of a model that is one part: named as it is, or "-00001-of-00001" too.
enum class PartNames { plain_if_one, always_numbered };

struct SplitLimits {
  uint64_t max_tensors = 0;            // per part; 0: no limit
  uint64_t max_bytes = 0;              // of tensor data per part, but at least one tensor; 0: no limit
  bool first_without_tensors = false;  // the first part holds only metadata
  PartNames names = PartNames::plain_if_one;
};

// Returns the part of each tensor, given the tensors' sizes in order. An empty model is one part.
std::vector<uint32_t> assign_parts(std::span<const uint64_t> tensor_bytes, const SplitLimits& limits);

// Returns "PREFIX-00002-of-00003.gguf" for "PREFIX.gguf" or "PREFIX"; part counts from 0.
std::string split_path(const std::string& path, uint32_t part, uint32_t n_parts);

class SplitWriter {
 public:
  explicit SplitWriter(std::string path, uint64_t alignment = 32);

  // May be changed until the first begin_tensor(). The writer sets the split.* keys.
  Metadata& metadata() { return metadata_; }
  void add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims);

  void split(const SplitLimits& limits);
  // part_of[i]: the part of tensor i, never decreasing; n_parts >= 1.
  void split_as(std::vector<uint32_t> part_of, uint32_t n_parts, PartNames names);

  // Returns the files that finish() will leave. Call it after split().
  std::vector<std::string> paths() const;
  uint64_t n_bytes_of_part(uint32_t part) const;  // of tensor data
  size_t n_tensors_of_part(uint32_t part) const;

  void begin_tensor(std::string_view name);  // the next declared one
  void append(std::span<const std::byte> bytes);
  void write_tensor(std::string_view name, std::span<const std::byte> bytes) {
    begin_tensor(name);
    append(bytes);
  }
  // Completes all parts on disk before the first gets its name.
  void finish();

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> dims;
    uint64_t n_bytes;
  };
  void open_parts();

  std::string path_;
  uint64_t alignment_;
  Metadata metadata_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> part_of_;  // empty: one file
  uint32_t n_parts_ = 1;
  bool numbered_ = false;
  std::vector<std::unique_ptr<GgufWriter>> writers_;  // empty until the first tensor begins
  size_t n_begun_ = 0;
  GgufWriter* current_ = nullptr;
};

}  // namespace tandem
