// Numbers and texts one behind the other, as the bytes of a message between ranks.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "ranks/ranks.h"

namespace tandem {

class Packet {
 public:
  Packet() = default;
  explicit Packet(const RankMessage& message) : bytes_(text_of(message)) {}

  template <class T>
  Packet& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packet& put(const std::string& text) {
    put(static_cast<uint64_t>(text.size()));
    bytes_ += text;
    return *this;
  }
  template <class T>
  Packet& put_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    return *this;
  }
  template <class T>
  T get() {
    T value;
    memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string get_text() {
    const auto n = get<uint64_t>();
    return {take(n), n};
  }
  // What is left, as values.
  template <class T>
  std::vector<T> get_rest() {
    std::vector<T> values((bytes_.size() - read_) / sizeof(T));
    if (!values.empty()) memcpy(values.data(), take(values.size() * sizeof(T)), values.size() * sizeof(T));
    return values;
  }
  std::span<const std::byte> bytes() const { return bytes_of(bytes_); }

 private:
  const char* take(size_t n) {
    if (n > bytes_.size() - read_) throw Error(ErrorCode::io, "a message of another rank is too short");
    read_ += n;
    return bytes_.data() + read_ - n;
  }
  std::string bytes_;
  size_t read_ = 0;
};

}  // namespace tandem
