// Hand-made GGUF files in which every field may be wrong, and a directory that is removed after the test.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::test {

// A buffer to append little-endian values to.
class ByteString {
 public:
  template <class T>
  ByteString& number(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof value);
    return *this;
  }
  ByteString& u32(uint32_t value) { return number(value); }
  ByteString& u64(uint64_t value) { return number(value); }
  ByteString& raw(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  ByteString& string(std::string_view text) { return u64(text.size()).raw(text); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// One key/value pair or one tensor info, as bytes.
inline std::string kv_u32(std::string_view key, uint32_t value) {
  return ByteString().string(key).u32(4).u32(value).bytes();
}
inline std::string kv_u16(std::string_view key, uint16_t value) {
  return ByteString().string(key).u32(2).number(value).bytes();
}
inline std::string kv_i32(std::string_view key, int32_t value) {
  return ByteString().string(key).u32(5).number(value).bytes();
}
inline std::string kv_string(std::string_view key, std::string_view value) {
  return ByteString().string(key).u32(8).string(value).bytes();
}
inline std::string tensor_info(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                               uint64_t offset) {
  ByteString info;
  info.string(name).u32(static_cast<uint32_t>(dims.size()));
  for (const uint64_t size : dims) info.u64(size);
  return info.u32(type).u64(offset).bytes();
}

struct RawGguf {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::string> pairs;              // kv_...
  std::vector<std::string> tensors;            // tensor_info
  std::optional<uint64_t> n_tensors, n_pairs;  // false counts
  uint64_t alignment = 32;                     // of the padding before the data
  std::string data;

  std::string header() const {
    ByteString out;
    out.raw(magic).u32(version).u64(n_tensors.value_or(tensors.size())).u64(n_pairs.value_or(pairs.size()));
    for (const std::string& pair : pairs) out.raw(pair);
    for (const std::string& tensor : tensors) out.raw(tensor);
    return out.bytes();
  }
  std::string bytes() const {
    std::string out = header();
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }
};

// A small valid file with every value type and two tensors, for tests to break.
inline RawGguf small_gguf() {
  RawGguf file;
  file.pairs = {
      kv_string("general.architecture", "llama"),
      ByteString().string("a.u8").u32(0).number(uint8_t{200}).bytes(),
      ByteString().string("a.i8").u32(1).number(int8_t{-100}).bytes(),
      kv_u16("a.u16", 60000),
      ByteString().string("a.i16").u32(3).number(int16_t{-30000}).bytes(),
      kv_u32("a.u32", 4000000000u),
      kv_i32("a.i32", -2000000000),
      ByteString().string("a.f32").u32(6).number(1.5f).bytes(),
      ByteString().string("a.bool").u32(7).number(uint8_t{1}).bytes(),
      ByteString().string("a.u64").u32(10).u64(uint64_t{1} << 63).bytes(),
      ByteString().string("a.i64").u32(11).number(int64_t{-5}).bytes(),
      ByteString().string("a.f64").u32(12).number(0.1).bytes(),
      ByteString().string("a.strings").u32(9).u32(8).u64(3).string("one").string("").string("three").bytes(),
      ByteString().string("a.floats").u32(9).u32(6).u64(2).number(0.5f).number(-2.0f).bytes(),
      ByteString().string("a.bools").u32(9).u32(7).u64(2).number(uint8_t{1}).number(uint8_t{0}).bytes(),
      ByteString().string("a.empty").u32(9).u32(5).u64(0).bytes(),
  };
  file.tensors = {tensor_info("first", {4, 3}, 0, 0), tensor_info("second", {32, 2}, 2, 64)};
  file.data.resize(64 + 36);
  for (size_t i = 0; i < file.data.size(); ++i) file.data[i] = static_cast<char>(i);
  return file;
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-test-XXXXXX").string();
    path_ = mkdtemp(name.data()) ? name : std::string();
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tandem::test
