// Values that are more than a number: escapes, biases, overrides, cache types, the prompt.
#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/error.h"
#include "base/terminal.h"
#include "base/text_input.h"
#include "tools/options/options.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

// -1 if c is not a hexadecimal digit.
int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int lower = std::tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The character for an escape sequence with this letter; nullopt if there is none.
std::optional<char> simple_escape(char c) {
  switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'a': return '\a';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'v': return '\v';
    case '0': return '\0';
    case '\\':
    case '"':
    case '\'': return c;
    default: return std::nullopt;
  }
}

MetadataOverride parse_metadata_override(const std::string& text) {
  const std::string option = "--override-kv";
  const size_t equals = text.find('=');
  const size_t colon = equals == std::string::npos ? equals : text.find(':', equals);
  if (equals == 0 || colon == std::string::npos) {
    throw_error(ErrorCode::usage, "{}: '{}' is not KEY=TYPE:VALUE", option, printable(text));
  }
  const std::string key = text.substr(0, equals);
  const std::string type = text.substr(equals + 1, colon - equals - 1);
  const std::string value = text.substr(colon + 1);
  if (type == "int") return {key, parse_integer(option, value, INT64_MIN, INT64_MAX)};
  if (type == "float") return {key, parse_real(option, value, -HUGE_VAL)};
  if (type == "bool") return {key, one_of<bool>(option, value, {{"true", true}, {"false", false}})};
  if (type == "str") return {key, value};
  throw_error(ErrorCode::usage, "{}: type '{}' of '{}' is none of int, float, bool, str", option,
              printable(type), printable(key));
}

}  // namespace

std::string read_text_file(const std::string& path, size_t max_bytes) {
  return read_text(path, std::min(max_bytes, kMaxFileBytes));
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == ',') {
      parts.back() += text[++i];
    } else if (text[i] == ',') {
      parts.emplace_back();
    } else {
      parts.back() += text[i];
    }
  }
  return parts;
}

std::string process_escapes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    if (const auto c = simple_escape(text[i + 1])) {
      out += *c;
      i += 1;
    } else if (text[i + 1] == 'x' && i + 3 < text.size() && hex_digit(text[i + 2]) >= 0 &&
               hex_digit(text[i + 3]) >= 0) {
      out += static_cast<char>(hex_digit(text[i + 2]) * 16 + hex_digit(text[i + 3]));
      i += 3;
    } else {
      out += '\\';
    }
  }
  return out;
}

LogitBias parse_logit_bias(const std::string& text) {
  const size_t sign = text.find_first_of("+-");
  if (sign == 0 || sign == std::string::npos || sign + 1 == text.size() || text[sign + 1] == '+' ||
      text[sign + 1] == '-') {
    throw_error(ErrorCode::usage, "--logit-bias: '{}' is not a token id, a sign and a number, like 15043+1",
                printable(text));
  }
  const auto token = parse_integer("--logit-bias", text.substr(0, sign), 0);
  const double bias = parse_real("--logit-bias", text.substr(sign + 1), 0);
  return {static_cast<int32_t>(token), static_cast<float>(text[sign] == '-' ? -bias : bias)};
}

std::vector<MetadataOverride> parse_metadata_overrides(const std::string& text) {
  std::vector<MetadataOverride> overrides;
  for (const std::string& part : split_list(text)) overrides.push_back(parse_metadata_override(part));
  return overrides;
}

DType parse_cache_type(const std::string& option, const std::string& text) {
  if (const auto dtype = find_cache_dtype(text)) return *dtype;
  throw_none_of(option, text, cache_dtype_names());
}

void apply_escapes(TextOptions& options, SamplerParams& params) {
  if (!options.escape) return;
  options.prompt = process_escapes(options.prompt);
  for (std::string& text : options.reverse_prompts) text = process_escapes(text);
  for (std::string& text : params.dry_sequence_breakers) text = process_escapes(text);
}

bool color_on(const TextOptions& options) {
  if (options.simple_io || options.color == Toggle::off) return false;
  return options.color == Toggle::on || stdout_has_colors();
}

std::string read_prompt(const TextOptions& options) {
  if (options.file.empty()) return options.prompt;
  std::string text = read_text(options.file);
  if (!text.empty() && text.back() == '\n') text.pop_back();  // the one that every editor adds
  return options.prompt.empty() ? text : options.prompt + "\n\n" + text;
}

}  // namespace tandem::tools
