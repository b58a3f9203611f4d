#include "gguf/split_writer.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"

namespace tandem {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr uint32_t kMaxParts = UINT16_MAX;  // split.count is an u16

std::string part_suffix(uint32_t part, uint32_t n_parts) {
  return format("-{:05}-of-{:05}.gguf", part + 1, n_parts);
}

}  // namespace

std::vector<uint32_t> assign_parts(std::span<const uint64_t> tensor_bytes, const SplitLimits& limits) {
  std::vector<uint32_t> part_of;
  uint32_t part = limits.first_without_tensors && !tensor_bytes.empty() ? 1 : 0;
  uint64_t n_tensors = 0, n_bytes = 0;  // of the part so far
  for (const uint64_t size : tensor_bytes) {
    const bool too_many = limits.max_tensors > 0 && n_tensors >= limits.max_tensors;
    const bool too_large = limits.max_bytes > 0 && n_tensors > 0 &&
                           size > limits.max_bytes - std::min(n_bytes, limits.max_bytes);
    if (too_many || too_large) {
      ++part;
      n_tensors = n_bytes = 0;
    }
    ++n_tensors;
    n_bytes += size;
    part_of.push_back(part);
  }
  return part_of;
}

std::string split_path(const std::string& path, uint32_t part, uint32_t n_parts) {
  const bool has_suffix = path.ends_with(kSuffix);
  return path.substr(0, path.size() - (has_suffix ? kSuffix.size() : 0)) + part_suffix(part, n_parts);
}

SplitWriter::SplitWriter(std::string path, uint64_t alignment)
    : path_(std::move(path)), alignment_(alignment), metadata_(path_) {}

void SplitWriter::add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims) {
  TANDEM_CHECK(part_of_.empty() && writers_.empty());
  uint64_t n_bytes = row_bytes(dtype, dims[0]);
  for (const int64_t size : dims.subspan(1)) n_bytes *= static_cast<uint64_t>(size);
  tensors_.push_back({std::string(name), dtype, {dims.begin(), dims.end()}, n_bytes});
}

void SplitWriter::split(const SplitLimits& limits) {
  std::vector<uint64_t> sizes;
  for (const Tensor& tensor : tensors_) sizes.push_back(tensor.n_bytes);
  std::vector<uint32_t> part_of = assign_parts(sizes, limits);
  const uint32_t n_parts = part_of.empty() ? 1 : part_of.back() + 1;
  split_as(std::move(part_of), n_parts, limits.names);
}

void SplitWriter::split_as(std::vector<uint32_t> part_of, uint32_t n_parts, PartNames names) {
  TANDEM_CHECK(writers_.empty() && part_of.size() == tensors_.size() && n_parts > 0);
  TANDEM_CHECK(std::is_sorted(part_of.begin(), part_of.end()));
  TANDEM_CHECK(part_of.empty() || part_of.back() < n_parts);
  if (n_parts > kMaxParts) {
    throw_error(ErrorCode::usage, "{}: this makes {} parts, at most {} are possible", path_, n_parts,
                kMaxParts);
  }
  part_of_ = std::move(part_of);
  n_parts_ = n_parts;
  numbered_ = n_parts > 1 || names == PartNames::always_numbered;
}

std::vector<std::string> SplitWriter::paths() const {
  if (!numbered_) return {path_};
  std::vector<std::string> paths;
  for (uint32_t part = 0; part < n_parts_; ++part) paths.push_back(split_path(path_, part, n_parts_));
  return paths;
}

uint64_t SplitWriter::n_bytes_of_part(uint32_t part) const {
  uint64_t n = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (part_of_.empty() || part_of_[i] == part) n += tensors_[i].n_bytes;
  }
  return n;
}

size_t SplitWriter::n_tensors_of_part(uint32_t part) const {
  if (part_of_.empty()) return tensors_.size();
  return static_cast<size_t>(std::count(part_of_.begin(), part_of_.end(), part));
}

void SplitWriter::open_parts() {
  const std::vector<std::string> names = paths();
  for (const char* key : {"split.no", "split.count", "split.tensors.count"}) metadata_.remove(key);
  for (uint32_t part = 0; part < n_parts_; ++part) {
    writers_.push_back(std::make_unique<GgufWriter>(names[part], alignment_));
    Metadata& metadata = writers_.back()->metadata();
    if (part == 0) {
      for (const Metadata::Entry& entry : metadata_.entries()) metadata.set(entry.key, entry.value);
    }
    if (n_parts_ == 1) continue;
    metadata.set("split.no", Value(static_cast<uint16_t>(part)));
    metadata.set("split.count", Value(static_cast<uint16_t>(n_parts_)));
    metadata.set("split.tensors.count", Value(static_cast<int32_t>(tensors_.size())));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    writers_[part_of_.empty() ? 0 : part_of_[i]]->add_tensor(tensor.name, tensor.dtype, tensor.dims);
  }
}

void SplitWriter::begin_tensor(std::string_view name) {
  if (writers_.empty()) open_parts();
  TANDEM_CHECK(n_begun_ < tensors_.size());
  current_ = writers_[part_of_.empty() ? 0 : part_of_[n_begun_]].get();
  ++n_begun_;
  current_->begin_tensor(name);
}

void SplitWriter::append(std::span<const std::byte> bytes) {
  TANDEM_CHECK(current_);
  current_->append(bytes);
}

void SplitWriter::finish() {
  if (writers_.empty()) open_parts();
  for (const auto& writer : writers_) writer->complete();
  // The first part last: when it is there, all are.
  for (auto writer = writers_.rbegin(); writer != writers_.rend(); ++writer) (*writer)->finish();
}

}  // namespace tandem
