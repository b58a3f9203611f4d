#include "gguf/header.h"

#include "base/checked.h"
#include "base/error.h"

namespace tandem {
namespace {

// Builds the header.
struct Bytes {
  std::vector<std::byte> bytes;

  void add(std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); }
  template <class T>
  void number(T value) {
    add(std::as_bytes(std::span(&value, 1)));
  }
  void string(std::string_view text) {
    number(static_cast<uint64_t>(text.size()));
    add(std::as_bytes(std::span(text)));
  }
  void value(const Value& value) {
    number(static_cast<uint32_t>(value.type()));
    if (value.type() == ValueType::string) return string(value.text());
    if (!value.is_array()) return add(value.raw());
    number(static_cast<uint32_t>(value.element_type()));
    number(static_cast<uint64_t>(value.size()));
    if (value.element_type() != ValueType::string) return add(value.raw());
    for (const std::string_view text : value.strings()) string(text);
  }
};

}  // namespace

GgufHeader::GgufHeader(const std::string& source, uint64_t alignment)
    : alignment_(alignment), metadata_(source) {
  TANDEM_CHECK(alignment >= 8 && (alignment & (alignment - 1)) == 0);
  if (alignment != kDefaultAlignment) {
    metadata_.set("general.alignment", Value(static_cast<uint32_t>(alignment)));
  }
}

void GgufHeader::add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims) {
  TANDEM_CHECK(!dims.empty() && dims.size() <= 4);
  const DTypeInfo& info = dtype_info(dtype);
  TANDEM_CHECK(dims[0] % info.block_elements == 0);
  uint64_t n_bytes = row_bytes(dtype, dims[0]);
  for (const int64_t size : dims) TANDEM_CHECK(size > 0);
  for (const int64_t size : dims.subspan(1)) {
    const auto product = checked_mul(n_bytes, static_cast<uint64_t>(size));
    TANDEM_CHECK(product.has_value());
    n_bytes = *product;
  }
  const uint64_t offset =
      tensors_.empty() ? 0 : align_up(tensors_.back().offset + tensors_.back().n_bytes, alignment_);
  tensors_.push_back({std::string(name), dtype, {dims.begin(), dims.end()}, n_bytes, offset});
}

uint64_t GgufHeader::n_tensor_bytes() const {
  uint64_t n = 0;
  for (const Tensor& tensor : tensors_) n += tensor.n_bytes;
  return n;
}

std::vector<std::byte> GgufHeader::bytes() const {
  Bytes header;
  header.add(std::as_bytes(std::span("GGUF", 4)));
  header.number(uint32_t{3});
  header.number(static_cast<uint64_t>(tensors_.size()));
  header.number(static_cast<uint64_t>(metadata_.entries().size()));
  for (const Metadata::Entry& entry : metadata_.entries()) {
    header.string(entry.key);
    header.value(entry.value);
  }
  for (const Tensor& tensor : tensors_) {
    header.string(tensor.name);
    header.number(static_cast<uint32_t>(tensor.dims.size()));
    for (const int64_t size : tensor.dims) header.number(size);
    header.number(static_cast<uint32_t>(tensor.dtype));
    header.number(tensor.offset);
  }
  header.bytes.resize(align_up(header.bytes.size(), alignment_));
  return std::move(header.bytes);
}

uint64_t GgufHeader::n_data_bytes() const {
  return tensors_.empty() ? 0 : align_up(tensors_.back().offset + tensors_.back().n_bytes, alignment_);
}

}  // namespace tandem
