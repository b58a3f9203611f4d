// GgufFile: a GGUF model file (v2 or v3, single or split), opened, validated and mapped without a copy.
//
// Layout, little-endian: "GGUF", u32 version, u64 n_tensors, u64 n_metadata; n_metadata times (string key,
// u32 type, value); n_tensors times (string name, u32 n_dims, u64 dims[n_dims], u32 dtype, u64 offset);
// padding to general.alignment; tensor data (offsets are relative to its start). A string is its u64 length
// followed by its bytes.
//
// Ownership: the object owns its mappings; metadata, names and data pointers are views that live as long as
// it does (moving it keeps them valid). Threads: immutable once open; read from any thread. Throws
// Error(bad_file) for anything wrong inside the file, Error(io) when the file cannot be opened or read,
// Error(out_of_memory) when there is no memory for a copy (OpenOptions::mmap false). If a mapped file shrinks
// while it is open, the process exits with one line on stderr and code 5 (see mapped_file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/dtype.h"
#include "gguf/mapped_file.h"
#include "gguf/metadata.h"

namespace tandem {

struct TensorInfo {
  std::string_view name;
  DType dtype;
  int n_dims;       // 1..4
  int64_t dims[4];  // innermost (contiguous) first, as in the file; unused ones are 1
  uint64_t n_bytes;
  const std::byte* data;  // rows of dims[0] elements without padding; aligned to general.alignment
  int part;               // index of the file that holds it
  uint64_t offset;        // of data, from the start of that file

  int64_t n_elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  int64_t n_rows() const { return dims[1] * dims[2] * dims[3]; }
  std::string shape_text() const;  // "[2048, 32000]", innermost first
};

class GgufFile {
 public:
  // Opens `path`; for the first part of a split model, opens all parts (in the same folder) as one model.
  // With options.metadata_only the other parts may be missing, and tensors() lists the first part only.
  explicit GgufFile(const std::string& path, const OpenOptions& options = {});
  // Parses bytes that outlive the object. `name` replaces the path in messages.
  GgufFile(std::span<const std::byte> bytes, const std::string& name);

  GgufFile(GgufFile&&) = default;
  GgufFile& operator=(GgufFile&&) = default;

  const std::string& path() const { return metadata_.source(); }
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }  // of the first part
  size_t n_parts() const { return parts_.size(); }
  const std::string& part_path(int part) const { return parts_[part].path(); }
  uint64_t n_file_bytes() const;    // all parts
  uint64_t n_tensor_bytes() const;  // all tensors

  const Metadata& metadata() const { return metadata_; }
  Metadata& metadata() { return metadata_; }  // for overrides

  std::span<const TensorInfo> tensors() const { return tensors_; }  // in file order
  const TensorInfo* find_tensor(std::string_view name) const;       // nullptr when absent
  const TensorInfo& tensor(std::string_view name) const;            // throws when absent

  // Throws for dtypes that the format has but tandem cannot read as floats (I8, Q8_1, IQ2_XXS, ...).
  void require_readable(const TensorInfo& tensor) const;

  // Returns whether the weights lie in mappings whose pages the system may drop and read again: neither
  // copied nor locked in memory.
  bool is_mapped() const;
  // The mappings, for read-ahead.
  std::span<const MappedFile> parts() const { return parts_; }
  // Moves bytes that lie in a mapping to memory, as MappedFile::hold(). Others are in memory.
  bool hold(std::span<const std::byte> bytes) const;

 private:
  GgufFile() = default;
  void add_part(MappedFile file);
  void add_split_parts(const OpenOptions& options);
  void copy_to_nodes(const OpenOptions& options);

  std::vector<MappedFile> parts_;
  Metadata metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string_view, size_t> index_;  // a tree, so that untrusted names cannot make it slow
  uint32_t version_ = 0;
  uint64_t alignment_ = 0;
};

}  // namespace tandem
