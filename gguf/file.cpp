#include "gguf/file.h"

#include <utility>

#include "base/error.h"
#include "gguf/node_ranges.h"
#include "gguf/parse.h"

namespace tandem {
namespace {

// Suffix of the file name of a part, counted from 1: "-00001-of-00003.gguf".
std::string part_suffix(uint64_t part, uint64_t n_parts) {
  return format("-{:05}-of-{:05}.gguf", static_cast<unsigned>(part), static_cast<unsigned>(n_parts));
}

}  // namespace

std::string TensorInfo::shape_text() const {
  std::string text = "[";
  for (int d = 0; d < n_dims; ++d) text += (d ? ", " : "") + std::to_string(dims[d]);
  return text + "]";
}

GgufFile::GgufFile(const std::string& path, const OpenOptions& options) {
  const bool copies = options.nodes.size() > 1 && !options.metadata_only;
  OpenOptions first = options;
  if (copies) first.mmap = true;  // only to find the tensors
  add_part(MappedFile::open(path, first));
  add_split_parts(first);
  if (copies && (!options.mmap || n_file_bytes() <= options.node_copy_limit)) {
    copy_to_nodes(options);
    return;
  }
  if (!options.prefetch || options.numa || options.metadata_only || n_file_bytes() > options.prefetch_limit)
    return;
  for (const MappedFile& part : parts_) part.prefetch();
}

GgufFile::GgufFile(std::span<const std::byte> bytes, const std::string& name) {
  add_part(MappedFile::view(bytes, name));
  add_split_parts({});
}

// Opens all parts anew, and checks them anew: they may have changed meanwhile.
void GgufFile::copy_to_nodes(const OpenOptions& options) {
  std::vector<MappedFile> copies;
  for (int i = 0; i < static_cast<int>(n_parts()); ++i) {
    copies.push_back(
        MappedFile::copy_to_nodes(part_path(i), options, node_ranges(tensors_, i, options.nodes)));
  }
  *this = GgufFile();
  for (MappedFile& copy : copies) add_part(std::move(copy));
}

// The model's metadata come from the first part; the other parts have only their number and the count.
void GgufFile::add_part(MappedFile file) {
  const int part = static_cast<int>(parts_.size());
  ParsedGguf parsed = parse_gguf(file.bytes(), file.path());
  for (TensorInfo& tensor : parsed.tensors) {
    tensor.part = part;
    const auto [other, is_new] = index_.emplace(tensor.name, tensors_.size());
    if (!is_new) {
      throw_error(ErrorCode::bad_file, "{}: tensor {} is also in {}", file.path(), printable(tensor.name),
                  part_path(tensors_[other->second].part));
    }
    tensors_.push_back(tensor);
  }
  if (part == 0) {
    version_ = parsed.version;
    alignment_ = parsed.alignment;
    metadata_ = std::move(parsed.metadata);
  } else {
    const auto expect = [&](const char* key, uint64_t needed) {
      const auto found = parsed.metadata.get<uint64_t>(key);
      if (found != needed) parsed.metadata.fail(key, std::to_string(found), std::to_string(needed));
    };
    expect("split.no", parts_.size());
    expect("split.count", metadata_.get<uint64_t>("split.count"));
  }
  parts_.push_back(std::move(file));
}

void GgufFile::add_split_parts(const OpenOptions& options) {
  const auto n_parts = metadata_.get_or<uint16_t>("split.count", 1);
  if (n_parts <= 1) return;
  const auto part = metadata_.get<uint16_t>("split.no");
  const std::string suffix = part_suffix(1, n_parts);
  if (part != 0) {
    throw_error(ErrorCode::bad_file, "{}: this is part {} of {}; open the first part (...{})", path(),
                part + 1, n_parts, suffix);
  }
  if (options.metadata_only) return;
  const std::string first = path();
  if (!first.ends_with(suffix)) {
    throw_error(ErrorCode::bad_file, "{}: this is part 1 of {}; its name must end in {}", first, n_parts,
                suffix);
  }
  const std::string prefix = first.substr(0, first.size() - suffix.size());
  for (uint64_t i = 2; i <= n_parts; ++i) {
    const std::string name = prefix + part_suffix(i, n_parts);
    try {
      add_part(MappedFile::open(name, options));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::io) throw;
      throw_error(ErrorCode::bad_file, "{} (part {} of {} of {})", error.message(), static_cast<int>(i),
                  n_parts, first);
    }
  }
  if (const auto needed = metadata_.get_optional<uint64_t>("split.tensors.count");
      needed && *needed != tensors_.size()) {
    throw_error(ErrorCode::bad_file, "{}: the {} parts hold {} tensors, needed {} (split.tensors.count)",
                first, n_parts, tensors_.size(), *needed);
  }
}

uint64_t GgufFile::n_file_bytes() const {
  uint64_t n = 0;
  for (const MappedFile& part : parts_) n += part.bytes().size();
  return n;
}

uint64_t GgufFile::n_tensor_bytes() const {
  uint64_t n = 0;
  for (const TensorInfo& tensor : tensors_) n += tensor.n_bytes;
  return n;
}

bool GgufFile::is_mapped() const {
  for (const MappedFile& part : parts_) {
    if (!part.is_evictable()) return false;
  }
  return true;
}

bool GgufFile::hold(std::span<const std::byte> bytes) const {
  for (const MappedFile& part : parts_) {
    const std::byte* const begin = part.bytes().data();
    if (bytes.data() >= begin && bytes.data() < begin + part.bytes().size()) return part.hold(bytes);
  }
  return true;
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& GgufFile::tensor(std::string_view name) const {
  const TensorInfo* found = find_tensor(name);
  if (!found) {
    throw_error(ErrorCode::bad_file, "{}: tensor {} is missing", path(), printable(name));
  }
  return *found;
}

void GgufFile::require_readable(const TensorInfo& tensor) const {
  const DTypeInfo& info = dtype_info(tensor.dtype);
  if (info.to_float) return;
  throw_error(ErrorCode::bad_file, "{}: tensor {} is {}, which this program cannot compute with",
              part_path(tensor.part), printable(tensor.name), info.name);
}

}  // namespace tandem
