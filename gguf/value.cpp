// Value, declared in metadata.h.
#include <charconv>
#include <utility>

#include "base/error.h"
#include "gguf/metadata.h"

namespace tandem {

void Value::check(bool condition) {
  TANDEM_CHECK(condition);
}

Value::Value(std::string text) : type_(ValueType::string) {
  const auto owned = std::make_shared<const std::string>(std::move(text));
  data_ = reinterpret_cast<const std::byte*>(owned->data());
  count_ = owned->size();
  owner_ = owned;
}

Value::Value(const std::vector<std::string>& strings)
    : type_(ValueType::array), element_type_(ValueType::string), count_(strings.size()) {
  const auto owned = std::make_shared<const std::vector<std::string>>(strings);
  strings_ = std::make_shared<const std::vector<std::string_view>>(owned->begin(), owned->end());
  owner_ = owned;
}

Value::Value(const std::vector<bool>& flags)
    : type_(ValueType::array), element_type_(ValueType::boolean), count_(flags.size()) {
  const auto owned = std::make_shared<std::vector<std::byte>>();
  for (const bool flag : flags) owned->push_back(static_cast<std::byte>(flag));
  data_ = owned->data();
  owner_ = owned;
}

Value::Value(ValueType element_type, std::span<const std::byte> bytes, size_t count)
    : type_(ValueType::array), element_type_(element_type), count_(count) {
  const auto owned = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  data_ = owned->data();
  owner_ = owned;
}

Value Value::scalar_view(ValueType type, const std::byte* data) {
  const size_t n_bytes = value_type_bytes(type);
  check(n_bytes > 0);
  Value value;
  value.type_ = type;
  std::memcpy(value.scalar_, data, n_bytes);
  return value;
}

Value Value::string_view_of(std::string_view text) {
  Value value;
  value.type_ = ValueType::string;
  value.data_ = reinterpret_cast<const std::byte*>(text.data());
  value.count_ = text.size();
  return value;
}

Value Value::array_view(ValueType element_type, const std::byte* data, size_t count) {
  check(value_type_bytes(element_type) > 0);
  Value value;
  value.type_ = ValueType::array;
  value.element_type_ = element_type;
  value.data_ = data;
  value.count_ = count;
  return value;
}

Value Value::string_array_view(std::vector<std::string_view> strings) {
  Value value;
  value.type_ = ValueType::array;
  value.element_type_ = ValueType::string;
  value.count_ = strings.size();
  value.strings_ = std::make_shared<const std::vector<std::string_view>>(std::move(strings));
  return value;
}

std::string_view Value::text() const {
  check(type_ == ValueType::string);
  return {reinterpret_cast<const char*>(data_), count_};
}

std::span<const std::string_view> Value::strings() const {
  check(is_array() && element_type_ == ValueType::string);
  return *strings_;
}

std::span<const std::byte> Value::raw() const {
  const size_t n_bytes = value_type_bytes(is_array() ? element_type_ : type_);
  check(n_bytes > 0);
  return is_array() ? std::span(data_, count_ * n_bytes) : std::span(scalar_, n_bytes);
}

std::string Value::type_text() const {
  if (!is_array()) return std::string(value_type_name(type_));
  return "array of " + std::to_string(count_) + " " + std::string(value_type_name(element_type_));
}

namespace {

// Returns the shortest text that reads back as the same number.
std::string number_text(ValueType type, const std::byte* data) {
  char text[40];
  const auto to_text = [&]<class T>(T) {
    return std::string(text, std::to_chars(text, text + sizeof text, ArrayView<T>(data, 1)[0]).ptr);
  };
  switch (type) {
    case ValueType::u8: return to_text(uint8_t{});
    case ValueType::i8: return to_text(int8_t{});
    case ValueType::u16: return to_text(uint16_t{});
    case ValueType::i16: return to_text(int16_t{});
    case ValueType::u32: return to_text(uint32_t{});
    case ValueType::i32: return to_text(int32_t{});
    case ValueType::u64: return to_text(uint64_t{});
    case ValueType::i64: return to_text(int64_t{});
    case ValueType::f32: return to_text(float{});
    case ValueType::f64: return to_text(double{});
    case ValueType::boolean: return ArrayView<bool>(data, 1)[0] ? "true" : "false";
    case ValueType::string:
    case ValueType::array: break;
  }
  return {};
}

}  // namespace

std::string Value::short_text(size_t limit) const {
  if (type_ == ValueType::string) return printable(text(), limit);
  if (!is_array()) return number_text(type_, scalar_);
  std::string out = "[" + std::to_string(count_) + " " + std::string(value_type_name(element_type_)) +
                    (element_type_ == ValueType::string && count_ != 1 ? "s]" : "]");
  const size_t start = out.size();
  for (size_t i = 0; i < count_; ++i) {
    const std::string next = element_type_ == ValueType::string
                                 ? printable((*strings_)[i], limit)
                                 : number_text(element_type_, data_ + i * value_type_bytes(element_type_));
    if (out.size() - start + next.size() + 2 > limit) return out + (i == 0 ? " ..." : ", ...");
    out += (i == 0 ? " " : ", ") + next;
  }
  return out;
}

}  // namespace tandem
