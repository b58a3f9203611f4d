#include "gguf/metadata.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/setting.h"

namespace tandem {
namespace {

struct TypeRow {
  std::string_view name;
  size_t n_bytes;
};
constexpr TypeRow kTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                              {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                              {"u64", 8}, {"i64", 8}, {"f64", 8}};

template <class T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// Converts between widths, never between integers, floats and bools. nullopt: another kind, or out of range.
template <class T, class From>
std::optional<T> convert(From from) {
  if constexpr (std::is_same_v<T, From>) {
    return from;
  } else if constexpr (is_integer<T> && is_integer<From>) {
    return std::in_range<T>(from) ? std::optional<T>(static_cast<T>(from)) : std::nullopt;
  } else if constexpr (std::is_floating_point_v<T> && std::is_floating_point_v<From>) {
    return static_cast<T>(from);
  } else {
    return std::nullopt;
  }
}

// Returns the values that a T accepts, for messages.
template <class T>
std::string needed_text() {
  if constexpr (is_integer<T>) {
    return "an integer from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
           std::to_string(std::numeric_limits<T>::max());
  } else if constexpr (std::is_floating_point_v<T>) {
    return "f32 or f64";
  } else {
    return std::string(value_type_name(value_type_of<T>()));
  }
}

template <class T>
constexpr bool is_text = std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>;

}  // namespace

std::string_view value_type_name(ValueType type) {
  TANDEM_CHECK(static_cast<size_t>(type) < std::size(kTypes));
  return kTypes[static_cast<size_t>(type)].name;
}

size_t value_type_bytes(ValueType type) {
  return static_cast<size_t>(type) < std::size(kTypes) ? kTypes[static_cast<size_t>(type)].n_bytes : 0;
}

// ---- Metadata

const Value* Metadata::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

void Metadata::set(std::string_view key, Value value) {
  const auto found = index_.find(key);
  if (found != index_.end()) {
    entries_[found->second].value = std::move(value);
    return;
  }
  index_.emplace(key, entries_.size());
  entries_.push_back({std::string(key), std::move(value)});
}

void Metadata::remove(std::string_view key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  const size_t gone = found->second;
  index_.erase(found);
  entries_.erase(entries_.begin() + gone);
  for (auto& [name, i] : index_) i -= i > gone;
}

void Metadata::fail(std::string_view key, const std::string& found, const std::string& needed) const {
  throw_error(ErrorCode::bad_file, "{}: metadata {}: found {}, needed {}", source_, printable(key), found,
              needed);
}

const Value& Metadata::require(std::string_view key, const char* needed) const {
  const Value* value = find(key);
  if (!value) fail(key, "nothing", needed);
  return *value;
}

template <class T>
std::optional<T> Metadata::get_optional(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  if constexpr (is_text<T>) {
    if (value->type() != ValueType::string) fail(key, value->type_text(), "a string");
    return T(value->text());
  } else {
    std::optional<T> result;
    with_type(value->type(), [&]<class From>(From) { result = convert<T>(value->scalar<From>()); });
    if (!result) {
      const bool number = value->type() != ValueType::string && !value->is_array();
      fail(key, value->type_text() + (number ? " " + value->short_text() : ""), needed_text<T>());
    }
    return result;
  }
}

template <class T>
T Metadata::get(std::string_view key) const {
  if constexpr (is_text<T>) {
    require(key, "a string");
  } else if (!has(key)) {
    require(key, needed_text<T>().c_str());
  }
  return *get_optional<T>(key);
}

template <class T>
ArrayView<T> Metadata::get_array(std::string_view key) const {
  const std::string needed = "array of " + std::string(value_type_name(value_type_of<T>()));
  const Value& value = require(key, needed.c_str());
  if (!value.is_array() || value.element_type() != value_type_of<T>()) fail(key, value.type_text(), needed);
  return value.elements<T>();
}

template <class T>
std::vector<T> Metadata::get_vector(std::string_view key) const {
  const std::string needed = "an array, each element " + needed_text<T>();
  const Value& value = require(key, needed.c_str());
  if (!value.is_array() || value.element_type() == ValueType::string) fail(key, value.type_text(), needed);
  std::vector<T> out;
  out.reserve(value.size());
  with_type(value.element_type(), [&]<class From>(From) {
    for (const From from : value.elements<From>()) {
      const std::optional<T> to = convert<T>(from);
      if (!to) fail(key, value.type_text() + " with " + Value(from).short_text(), needed);
      out.push_back(*to);
    }
  });
  return out;
}

std::span<const std::string_view> Metadata::get_strings(std::string_view key) const {
  const Value& value = require(key, "array of string");
  if (!value.is_array() || value.element_type() != ValueType::string)
    fail(key, value.type_text(), "array of string");
  return value.strings();
}

#define TANDEM_INSTANTIATE(T)                                                  \
  template std::optional<T> Metadata::get_optional<T>(std::string_view) const; \
  template T Metadata::get<T>(std::string_view) const;
#define TANDEM_INSTANTIATE_NUMBER(T)                                    \
  TANDEM_INSTANTIATE(T)                                                 \
  template ArrayView<T> Metadata::get_array<T>(std::string_view) const; \
  template std::vector<T> Metadata::get_vector<T>(std::string_view) const;
TANDEM_INSTANTIATE(std::string)
TANDEM_INSTANTIATE(std::string_view)
TANDEM_INSTANTIATE(bool)
template ArrayView<bool> Metadata::get_array<bool>(std::string_view) const;
TANDEM_INSTANTIATE_NUMBER(uint8_t)
TANDEM_INSTANTIATE_NUMBER(int8_t)
TANDEM_INSTANTIATE_NUMBER(uint16_t)
TANDEM_INSTANTIATE_NUMBER(int16_t)
TANDEM_INSTANTIATE_NUMBER(uint32_t)
TANDEM_INSTANTIATE_NUMBER(int32_t)
TANDEM_INSTANTIATE_NUMBER(uint64_t)
TANDEM_INSTANTIATE_NUMBER(int64_t)
TANDEM_INSTANTIATE_NUMBER(float)
TANDEM_INSTANTIATE_NUMBER(double)
#undef TANDEM_INSTANTIATE
#undef TANDEM_INSTANTIATE_NUMBER

// ---- overrides

namespace {

std::optional<Value> integer_as(ValueType type, int64_t number) {
  std::optional<Value> value;
  with_type(type, [&]<class T>(T) {
    if constexpr (is_integer<T>) {
      if (std::in_range<T>(number)) value = Value(static_cast<T>(number));
    }
  });
  return value;
}

bool is_integer_type(ValueType type) {
  bool is = false;
  with_type(type, [&]<class T>(T) { is = is_integer<T>; });
  return is;
}

}  // namespace

void Metadata::apply(const MetadataOverride& o) {
  const auto refuse = [&](const std::string& found, const std::string& needed) {
    throw_error(ErrorCode::usage, "{}: {}={}: needed {}", setting_text(Setting::metadata_overrides),
                printable(o.key), found, needed);
  };
  if (const auto* text = std::get_if<std::string>(&o.value)) return set(o.key, Value(*text));
  if (const auto* flag = std::get_if<bool>(&o.value)) return set(o.key, Value(*flag));
  if (const auto* real = std::get_if<double>(&o.value)) {
    const auto number = static_cast<float>(*real);
    if (std::isfinite(*real) && !std::isfinite(number))
      refuse(format("{:g}", *real), "a number that fits f32");
    return set(o.key, Value(number));
  }
  const int64_t number = std::get<int64_t>(o.value);
  const Value* before = find(o.key);
  if (before && is_integer_type(before->type())) {
    std::optional<Value> value = integer_as(before->type(), number);
    if (!value) {
      refuse(std::to_string(number),
             "an integer that fits " + before->type_text() + ", the key's type in the file");
    }
    return set(o.key, std::move(*value));
  }
  std::optional<Value> value = integer_as(ValueType::u32, number);
  set(o.key, value ? std::move(*value) : Value(number));
}

}  // namespace tandem
