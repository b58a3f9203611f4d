#include "tools/convert/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/json.h"

namespace tandem::tools {
namespace {

// Accepts an integer, or a float with an integer value (some tools write 4096.0).
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto n = value.get<uint64_t>();
    return n <= INT64_MAX ? std::optional<int64_t>(static_cast<int64_t>(n)) : std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double x = value.get<double>();
  if (!(std::fabs(x) < 0x1p53) || x != std::floor(x)) return std::nullopt;
  return static_cast<int64_t>(x);
}

// Python writes infinity and NaN without quotes, which JSON has no words for: a number beyond any size, and null.
std::string without_python_words(const std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {{"Infinity", "1e308"}, {"NaN", "null"}};
  if (text.find("Infinity") == std::string::npos && text.find("NaN") == std::string::npos) return text;
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    const auto word = std::ranges::find_if(kWords, [&](const auto& w) { return rest.starts_with(w.first); });
    if (!in_string && word != std::end(kWords)) {
      result += word->second;
      i += word->first.size();
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    const size_t n = in_string && text[i] == '\\' ? 2 : 1;  // an escaped quote ends nothing
    result += rest.substr(0, n);
    i += n;
  }
  return result;
}

}  // namespace

std::string read_regular_file(const std::string& path, uint64_t limit) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not block on a FIFO
  if (fd < 0) throw_error(ErrorCode::io, "{}: cannot open: {}", path, strerror(errno));
  const std::unique_ptr<const int, void (*)(const int*)> closer(&fd, [](const int* f) { close(*f); });
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    throw_error(ErrorCode::bad_file, "{}: not a regular file", path);
  }
  if (static_cast<uint64_t>(status.st_size) > limit) {
    throw_error(ErrorCode::bad_file, "{}: found {} bytes, needed at most {}", path, status.st_size, limit);
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = read(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_error(ErrorCode::io, "{}: cannot read: {}", path, strerror(errno));
    if (n == 0) break;  // the file shrank
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

std::string short_json(const Json& value) {
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

JsonObject JsonObject::parse(std::string_view text, const std::string& source) {
  auto value = std::make_shared<const Json>(parse_json(text, source));
  if (!value->is_object()) {
    throw_error(ErrorCode::bad_file, "{}: found {}, needed a JSON object", source, short_json(*value));
  }
  return {source, "", std::move(value)};
}

JsonObject JsonObject::read(const std::string& path) {
  return parse(without_python_words(read_regular_file(path)), path);
}

std::optional<JsonObject> JsonObject::read_optional(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::nullopt;
  return read(path);
}

const Json* JsonObject::find(std::string_view key) const {
  const auto it = value_->find(key);
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

void JsonObject::fail(std::string_view key, const std::string& found, const std::string& needed) const {
  constexpr size_t kMaxFound = 400;  // bytes of what may be the file's own text
  throw_error(ErrorCode::bad_file, "{}: {}{}: found {}, needed {}", source_, prefix_, printable(key),
              printable(found, kMaxFound), needed);
}

std::optional<int64_t> JsonObject::optional_integer(std::string_view key, int64_t min, int64_t max) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  const std::optional<int64_t> n = as_integer(*value);
  if (!n || *n < min || *n > max) {
    fail(key, short_json(*value), format("an integer from {} to {}", min, max));
  }
  return n;
}

int64_t JsonObject::integer(std::string_view key, int64_t min, int64_t max) const {
  const std::optional<int64_t> n = optional_integer(key, min, max);
  if (!n) fail(key, "nothing", "an integer");
  return *n;
}

std::optional<double> JsonObject::optional_number(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) fail(key, short_json(*value), "a number");
  return value->get<double>();
}

double JsonObject::number(std::string_view key) const {
  const std::optional<double> x = optional_number(key);
  if (!x) fail(key, "nothing", "a number");
  return *x;
}

std::optional<bool> JsonObject::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) fail(key, short_json(*value), "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonObject::text(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) fail(key, short_json(*value), "a string");
  return value->get<std::string>();
}

std::optional<JsonObject> JsonObject::object(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) fail(key, short_json(*value), "an object");
  return JsonObject(source_, prefix_ + std::string(key) + ".", std::shared_ptr<const Json>(value_, value));
}

std::optional<std::vector<double>> JsonObject::numbers(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  std::vector<double> out;
  for (const Json& x : value->is_array() ? *value : Json::array({nullptr})) {
    if (!x.is_number() || !std::isfinite(x.get<double>()))
      fail(key, short_json(*value), "an array of numbers");
    out.push_back(x.get<double>());
  }
  return out;
}

std::optional<std::vector<std::string>> JsonObject::texts(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  std::vector<std::string> out;
  for (const Json& x : value->is_array() ? *value : Json::array({nullptr})) {
    if (!x.is_string()) fail(key, short_json(*value), "an array of strings");
    out.push_back(x.get<std::string>());
  }
  return out;
}

}  // namespace tandem::tools
