#include "tools/quantize/recipe.h"

#include <cctype>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "gguf/file.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;

bool is_model(const std::string& path) {
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == "GGUF";
}

// The pattern of one name.
std::string exactly(std::string_view name) {
  std::string pattern = "^";
  for (const char c : name) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '_') pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

std::vector<DTypeRule> rules_of_model(const std::string& path) {
  const GgufFile file(path, {.prefetch = false});
  std::vector<DTypeRule> rules;
  for (const TensorInfo& tensor : file.tensors()) {
    if (!dtype_info(tensor.dtype).from_float || tensor.dims[1] <= 1) continue;
    const std::string pattern = exactly(tensor.name);
    rules.push_back({pattern, Regex(pattern, path), tensor.dtype});
  }
  return rules;
}

}  // namespace

DType parse_dtype(const std::string& where, const std::string& text) {
  const std::optional<DType> dtype = dtype_from_name(text);
  if (dtype && dtype_info(*dtype).from_float) return *dtype;
  std::string known;
  for (const DTypeInfo& info : all_dtypes()) {
    if (info.from_float) known += (known.empty() ? "" : " ") + std::string(info.name);
  }
  throw_error(ErrorCode::usage, "{}: found \"{}\", needed one of: {}", where, printable(text), known);
}

// The last "=" separates: a pattern may have others.
DTypeRule parse_rule(const std::string& where, const std::string& text) {
  const size_t equals = text.rfind('=');
  const std::string pattern(
      trimmed(std::string_view(text).substr(0, equals == std::string::npos ? 0 : equals)));
  if (pattern.empty()) {
    throw_error(ErrorCode::usage, "{}: found \"{}\", needed PATTERN=TYPE", where, printable(text));
  }
  return {pattern, Regex(lower_case(pattern), where),
          parse_dtype(where, std::string(trimmed(std::string_view(text).substr(equals + 1))))};
}

std::vector<DTypeRule> read_recipe(const std::string& path) {
  if (is_model(path)) return rules_of_model(path);
  const std::string text = read_text_file(path, kMaxBytes);
  std::vector<DTypeRule> rules;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line = std::string(trimmed(line));
    if (line.empty() || line[0] == '#') continue;
    rules.push_back(parse_rule(format("{}:{}", path, number), line));
  }
  if (rules.empty()) throw_error(ErrorCode::usage, "{}: found no rule, needed lines of PATTERN=TYPE", path);
  return rules;
}

}  // namespace tandem::tools
