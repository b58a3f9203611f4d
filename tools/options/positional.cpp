#include "tools/options/positional.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace tandem::tools {
namespace {

struct Row {
  std::string_view command;
  PositionalOptions options;
};

const Row kRows[] = {
    {"run", {{"model", "prompt"}}},      {"chat", {{"model", "prompt"}}},
    {"tokenize", {{"model", "prompt"}}}, {"batch", {{"model", "input"}}},
    {"template", {{"model", "input"}}},  {"perplexity", {{"model", "file"}}},
    {"imatrix", {{"model", "file"}}},    {"plan", {{"model"}}},
    {"bench", {{"model"}, true}},
};

// USER/REPO, with :QUANT or not.
bool is_hub_name(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == text.size()) return false;
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) {
                       return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/' || c == ':';
                     }) &&
         text.find('/', slash + 1) == std::string::npos;
}

}  // namespace

PositionalOptions positional_options(const std::string& command) {
  const auto found = std::find_if(std::begin(kRows), std::end(kRows),
                                  [&command](const Row& row) { return row.command == command; });
  return found == std::end(kRows) ? PositionalOptions{} : found->options;
}

bool looks_like_model(const std::string& text) {
  std::error_code ignored;
  if (text.size() < 4096 && std::filesystem::is_regular_file(text, ignored)) return true;
  if (text.find_first_of(" \t\n") != std::string::npos) return text.ends_with(".gguf");
  return text.ends_with(".gguf") || text.ends_with(".GGUF") || is_hub_name(text);
}

}  // namespace tandem::tools
