#include "tools/hub/model_name.h"

#include <cctype>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace tandem::tools {
namespace {

constexpr size_t kMaxPart = 96;
constexpr std::string_view kPrefixes[] = {"https://huggingface.co/", "https://hf.co/", "huggingface.co/",
                                          "hf.co/", "hf://"};

bool ends_with_ignoring_case(std::string_view text, std::string_view end) {
  if (text.size() < end.size()) return false;
  for (size_t i = 0; i < end.size(); ++i) {
    const char c = text[text.size() - end.size() + i];
    if (std::tolower(static_cast<unsigned char>(c)) != end[i]) return false;
  }
  return true;
}

// The hub's rule: letters, digits, '-', '_' and '.', and neither "--" nor ".." in it.
bool is_name_part(std::string_view part) {
  if (part.empty() || part.size() > kMaxPart) return false;
  for (const char c : part) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') return false;
  }
  const auto is_edge = [](char c) { return c == '-' || c == '.'; };
  if (is_edge(part.front()) || is_edge(part.back())) return false;
  return part.find("--") == part.npos && part.find("..") == part.npos;
}

bool is_quant(std::string_view quant) {
  if (quant.empty() || quant.size() > kMaxPart) return false;
  for (const char c : quant) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

}  // namespace

std::optional<ModelName> parse_model_name(std::string_view text) {
  for (const std::string_view prefix : kPrefixes) {
    if (!text.starts_with(prefix)) continue;
    text.remove_prefix(prefix.size());
    if (text.ends_with("/tree/main")) text.remove_suffix(10);
    if (text.ends_with("/")) text.remove_suffix(1);
    break;
  }
  ModelName name;
  const size_t colon = text.find(':');
  if (colon != text.npos) {
    name.quant = text.substr(colon + 1);
    if (!is_quant(name.quant)) return std::nullopt;
    text = text.substr(0, colon);
  }
  const size_t slash = text.find('/');
  if (slash == text.npos) return std::nullopt;
  if (!is_name_part(text.substr(0, slash)) || !is_name_part(text.substr(slash + 1))) return std::nullopt;
  name.repo = text;
  return name;
}

ModelName require_model_name(const std::string& option, std::string_view text) {
  if (std::optional<ModelName> name = parse_model_name(text)) return *name;
  throw_error(ErrorCode::usage, "{}: '{}' is not a name on the hub, needed USER/REPO or USER/REPO:QUANT",
              option, printable(text));
}

bool means_hub_model(const std::string& text) {
  namespace fs = std::filesystem;
  const std::optional<ModelName> name = parse_model_name(text);
  if (!name) return false;
  std::error_code ignored;
  if (fs::exists(text, ignored)) return false;
  if (!text.starts_with(name->repo)) return true;  // with a prefix such as hf://
  if (ends_with_ignoring_case(name->repo, ".gguf") && name->quant.empty()) return false;
  return !fs::exists(fs::path(name->repo).parent_path(), ignored);
}

}  // namespace tandem::tools
