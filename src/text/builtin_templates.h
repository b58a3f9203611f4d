// Chat templates by name, for models whose file has none: `--chat-template llama3`. Each gives the prompt
// format that its model family was trained with, without tools.
#pragma once

#include <span>
#include <string_view>

namespace tandem {

struct BuiltinTemplate {
  std::string_view name;
  std::string_view text;  // Jinja
};

std::span<const BuiltinTemplate> builtin_templates();
// Returns nullptr for an unknown name.
const BuiltinTemplate* find_builtin_template(std::string_view name);
// The template for models that have none.
inline constexpr std::string_view kDefaultTemplate = "chatml";

}  // namespace tandem
