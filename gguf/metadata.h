// Metadata: the key-value pairs of a GGUF file. Used by the reader, the writer, metadata overrides and tests.
//
// Ownership: a Value read from a file is a view into that file's mapping and must not outlive it; a Value
// made from C++ values owns its bytes. Both are cheap to copy. Not synchronized; concurrent reads are fine.
// Throws Error(bad_file) with the source (the file), the key, what was found and what was needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace tandem {

// The numbers are those of the file format.
enum class ValueType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

// Returns "u32", "string", ...; `type` must be one of the above.
std::string_view value_type_name(ValueType type);
// Returns the bytes of one element in the file; 0 for string and array (variable size) and unknown types.
size_t value_type_bytes(ValueType type);

// The ValueType that stores a C++ arithmetic type.
template <class T>
constexpr ValueType value_type_of() {
  if constexpr (std::is_same_v<T, bool>)
    return ValueType::boolean;
  else if constexpr (std::is_same_v<T, float>)
    return ValueType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return ValueType::f64;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return ValueType::u8;
  else if constexpr (std::is_same_v<T, int8_t>)
    return ValueType::i8;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return ValueType::u16;
  else if constexpr (std::is_same_v<T, int16_t>)
    return ValueType::i16;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return ValueType::u32;
  else if constexpr (std::is_same_v<T, int32_t>)
    return ValueType::i32;
  else if constexpr (std::is_same_v<T, uint64_t>)
    return ValueType::u64;
  else {
    static_assert(std::is_same_v<T, int64_t>, "not a type of the format");
    return ValueType::i64;
  }
}

// Calls f(T{}) with the C++ type that stores numbers of `type`. Does nothing for strings and arrays.
template <class F>
void with_type(ValueType type, F&& f) {
  switch (type) {
    case ValueType::u8: return f(uint8_t{});
    case ValueType::i8: return f(int8_t{});
    case ValueType::u16: return f(uint16_t{});
    case ValueType::i16: return f(int16_t{});
    case ValueType::u32: return f(uint32_t{});
    case ValueType::i32: return f(int32_t{});
    case ValueType::u64: return f(uint64_t{});
    case ValueType::i64: return f(int64_t{});
    case ValueType::f32: return f(float{});
    case ValueType::f64: return f(double{});
    case ValueType::boolean: return f(bool{});
    case ValueType::string:
    case ValueType::array: return;
  }
}

// An array of packed elements of type T, read in place, at any alignment.
template <class T>
class ArrayView {
 public:
  ArrayView() = default;
  ArrayView(const std::byte* data, size_t size) : data_(data), size_(size) {}
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T operator[](size_t i) const {
    if constexpr (std::is_same_v<T, bool>) {
      return data_[i] != std::byte{0};  // the file may hold any byte
    } else {
      T value;
      std::memcpy(&value, data_ + i * sizeof(T), sizeof(T));
      return value;
    }
  }

  class Iterator {
   public:
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    Iterator(const ArrayView* view, size_t i) : view_(view), i_(i) {}
    T operator*() const { return (*view_)[i_]; }
    Iterator& operator++() {
      ++i_;
      return *this;
    }
    Iterator operator++(int) {
      Iterator old = *this;
      ++i_;
      return old;
    }
    bool operator==(const Iterator& other) const { return i_ == other.i_; }

   private:
    const ArrayView* view_ = nullptr;
    size_t i_ = 0;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// One metadata value: a number, a bool, a string, or an array of one of these (never nested).
class Value {
 public:
  // Owning values.
  template <class T>
  requires std::is_arithmetic_v<T>
  explicit Value(T value) : type_(value_type_of<T>()) { std::memcpy(scalar_, &value, sizeof value); }
  explicit Value(std::string text);
  explicit Value(const char* text) : Value(std::string(text)) {}
  explicit Value(const std::vector<std::string>& strings);
  explicit Value(const std::vector<bool>& flags);
  template <class T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) explicit Value(std::span<const T> elements)
      : Value(value_type_of<T>(), std::as_bytes(elements), elements.size()) {}
  template <class T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) explicit Value(const std::vector<T>& elements)
      : Value(std::span<const T>(elements)) {}

  // Views into memory that outlives the value, as the reader makes them.
  static Value scalar_view(ValueType type, const std::byte* data);
  static Value string_view_of(std::string_view text);
  static Value array_view(ValueType element_type, const std::byte* data, size_t count);
  static Value string_array_view(std::vector<std::string_view> strings);

  ValueType type() const { return type_; }
  bool is_array() const { return type_ == ValueType::array; }
  // Arrays only.
  ValueType element_type() const { return element_type_; }
  size_t size() const { return count_; }

  // Accessors. The caller has checked the type; a wrong one is a bug (TANDEM_CHECK).
  std::string_view text() const;
  std::span<const std::string_view> strings() const;
  template <class T>
  T scalar() const {  // exactly the stored type
    check(type_ == value_type_of<T>());
    return ArrayView<T>(scalar_, 1)[0];
  }
  template <class T>
  ArrayView<T> elements() const {  // exactly the stored element type
    check(is_array() && element_type_ == value_type_of<T>());
    return ArrayView<T>(data_, count_);
  }
  // The bytes of a number or of a packed array of numbers, as in the file.
  std::span<const std::byte> raw() const;

  // Returns the type for messages: "u32", "string", "array of 3 f32".
  std::string type_text() const;
  // Returns the value for messages: long strings and arrays shortened, safe to print.
  std::string short_text(size_t limit = 60) const;

 private:
  Value() = default;
  Value(ValueType element_type, std::span<const std::byte> bytes, size_t count);
  static void check(bool condition);

  ValueType type_ = ValueType::u8;
  ValueType element_type_ = ValueType::u8;
  alignas(8) std::byte scalar_[8] = {};
  const std::byte* data_ = nullptr;  // of the string or the packed array
  size_t count_ = 0;                 // bytes of the string, elements of the array
  std::shared_ptr<const std::vector<std::string_view>> strings_;
  std::shared_ptr<const void> owner_;
};

// Replaces a value of the file. An integer keeps the integer type of an existing key; a new key is u32 if the
// value fits, else i64. A double becomes f32.
struct MetadataOverride {
  std::string key;
  std::variant<int64_t, double, bool, std::string> value;
};

// An ordered map from key to Value.
class Metadata {
 public:
  struct Entry {
    std::string key;
    Value value;
  };

  Metadata() = default;
  // `source` starts every error message: the path of the file.
  explicit Metadata(std::string source) : source_(std::move(source)) {}
  const std::string& source() const { return source_; }

  std::span<const Entry> entries() const { return entries_; }  // in file order
  const Value* find(std::string_view key) const;               // nullptr when absent
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Adds the key, or replaces its value in place.
  void set(std::string_view key, Value value);
  void remove(std::string_view key);
  // Throws Error(usage) for a number that does not fit.
  void apply(const MetadataOverride& replacement);

  // T is an integer (accepts any integer type, range checked), float or double (accepts f32 and f64), bool,
  // std::string_view or std::string. get throws when the key is absent; all throw on a wrong type or range.
  template <class T>
  T get(std::string_view key) const;
  template <class T>
  std::optional<T> get_optional(std::string_view key) const;
  template <class T>
  T get_or(std::string_view key, T fallback) const {
    return get_optional<T>(key).value_or(std::move(fallback));
  }

  // Arrays in place; the element type must be exactly T. Throws when absent.
  template <class T>
  ArrayView<T> get_array(std::string_view key) const;
  std::span<const std::string_view> get_strings(std::string_view key) const;
  // A copy of an array, each element converted as in get. Throws for a scalar.
  template <class T>
  std::vector<T> get_vector(std::string_view key) const;

  // Throws Error(bad_file): "SOURCE: metadata KEY: found ..., needed ...".
  [[noreturn]] void fail(std::string_view key, const std::string& found, const std::string& needed) const;

 private:
  const Value& require(std::string_view key, const char* needed) const;

  std::string source_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // a tree, so that untrusted keys cannot make it slow
};

}  // namespace tandem
