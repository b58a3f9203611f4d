#include "gguf/writer.h"

#include "base/checked.h"
#include "base/error.h"

namespace tandem {

GgufWriter::GgufWriter(const std::string& path, uint64_t alignment) : file_(path), header_(path, alignment) {}

void GgufWriter::add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims) {
  TANDEM_CHECK(!header_written_);
  header_.add_tensor(name, dtype, dims);
}

void GgufWriter::write_header() {
  header_written_ = true;
  file_.write(header_.bytes());
}

void GgufWriter::begin_tensor(std::string_view name) {
  if (!header_written_) write_header();
  TANDEM_CHECK(n_left_ == 0 && n_begun_ < header_.tensors().size() &&
               header_.tensors()[n_begun_].name == name);
  pad_to_alignment();
  n_left_ = header_.tensors()[n_begun_++].n_bytes;
}

void GgufWriter::append(std::span<const std::byte> bytes) {
  TANDEM_CHECK(bytes.size() <= n_left_);
  n_left_ -= bytes.size();
  file_.write(bytes);
}

void GgufWriter::pad_to_alignment() {
  const uint64_t n = file_.n_bytes();
  file_.write(std::vector<std::byte>(align_up(n, header_.alignment()) - n));
}

void GgufWriter::complete() {
  if (!header_written_) write_header();
  TANDEM_CHECK(n_left_ == 0 && n_begun_ == header_.tensors().size());
  pad_to_alignment();  // some readers want the last tensor padded too
  file_.complete();
  complete_ = true;
}

void GgufWriter::finish() {
  if (!complete_) complete();
  file_.publish();
}

}  // namespace tandem
