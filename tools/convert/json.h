// JSON files of a model folder, with the checks that untrusted text needs.
//
// A JsonObject owns its parsed text and its source, so that every error names the file and the key. A key
// with the value null counts as absent, as in Python. Throws Error(bad_file) for unexpected values and
// Error(io) for a file that cannot be read. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

using Json = nlohmann::json;

// Reads a regular file of at most `limit` bytes.
std::string read_regular_file(const std::string& path, uint64_t limit = uint64_t{1} << 30);

class JsonObject {
 public:
  // `text` must be one JSON object. Error messages start with `source`.
  static JsonObject parse(std::string_view text, const std::string& source);
  static JsonObject read(const std::string& path);
  // nullopt if the file does not exist.
  static std::optional<JsonObject> read_optional(const std::string& path);

  const std::string& source() const { return source_; }
  const Json& json() const { return *value_; }

  const Json* find(std::string_view key) const;  // nullptr when absent or null
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // The value of a key. All throw for a wrong type or range; integer() and number() also if the key is
  // absent.
  int64_t integer(std::string_view key, int64_t min, int64_t max) const;
  std::optional<int64_t> optional_integer(std::string_view key, int64_t min, int64_t max) const;
  double number(std::string_view key) const;  // finite
  std::optional<double> optional_number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<JsonObject> object(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;

  // Throws "SOURCE: KEY: found ..., needed ...". `found` may be the file's own text: it is made printable and shortened.
  [[noreturn]] void fail(std::string_view key, const std::string& found, const std::string& needed) const;

 private:
  JsonObject(std::string source, std::string prefix, std::shared_ptr<const Json> value)
      : source_(std::move(source)), prefix_(std::move(prefix)), value_(std::move(value)) {}

  std::string source_;  // the file
  std::string prefix_;  // "rope_scaling." for an object inside the file
  std::shared_ptr<const Json> value_;
};

// Returns the value on one line, shortened, for error messages.
std::string short_json(const Json& value);

}  // namespace tandem::tools
