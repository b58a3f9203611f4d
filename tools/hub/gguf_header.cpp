#include "tools/hub/gguf_header.h"

#include <cstring>

#include "gguf/metadata.h"

namespace tandem::tools {
namespace {

constexpr uint64_t kMaxDims = 4;

// The bytes ended, or are no header.
struct Incomplete {};
struct Invalid {};

class Walker {
 public:
  explicit Walker(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t walk() {
    if (number<uint32_t>() != 0x46554747) throw Invalid();  // "GGUF"
    const auto version = number<uint32_t>();
    if (version != 2 && version != 3) throw Invalid();
    const auto n_tensors = number<uint64_t>(), n_metadata = number<uint64_t>();
    for (uint64_t i = 0; i < n_metadata; ++i) {
      string();
      value(number<uint32_t>());
    }
    for (uint64_t i = 0; i < n_tensors; ++i) {
      string();
      const auto n_dims = number<uint32_t>();
      if (n_dims > kMaxDims) throw Invalid();
      skip(n_dims * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint64_t));  // dims, dtype, offset
    }
    return at_;
  }

 private:
  void skip(uint64_t n) {
    if (n > bytes_.size() - at_) throw Incomplete();
    at_ += n;
  }
  template <class T>
  T number() {
    T value;
    const uint64_t from = at_;
    skip(sizeof value);
    std::memcpy(&value, bytes_.data() + from, sizeof value);
    return value;
  }
  void string() { skip(number<uint64_t>()); }

  void value(uint32_t type) {
    if (type > static_cast<uint32_t>(ValueType::f64)) throw Invalid();
    const auto value_type = static_cast<ValueType>(type);
    if (value_type == ValueType::string) return string();
    if (value_type != ValueType::array) return skip(value_type_bytes(value_type));
    const auto element = number<uint32_t>();
    const auto n = number<uint64_t>();
    if (element > static_cast<uint32_t>(ValueType::f64) ||
        static_cast<ValueType>(element) == ValueType::array) {
      throw Invalid();
    }
    if (static_cast<ValueType>(element) == ValueType::string) {
      for (uint64_t i = 0; i < n; ++i) string();
      return;
    }
    const uint64_t n_bytes = value_type_bytes(static_cast<ValueType>(element));
    if (n > (bytes_.size() - at_) / n_bytes) throw Incomplete();
    skip(n * n_bytes);
  }

  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
};

}  // namespace

std::optional<uint64_t> gguf_header_end(std::span<const std::byte> start) {
  try {
    return Walker(start).walk();
  } catch (const Incomplete&) {
    return std::nullopt;
  } catch (const Invalid&) {
    return start.size();
  }
}

}  // namespace tandem::tools
