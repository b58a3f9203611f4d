// Chat templates by name, for models whose file has none: `--chat-template llama3`. They turn a conversation
// into the prompt that the models of that family were trained with; tools are not among what they know.
#pragma once

#include <span>
#include <string_view>

namespace tandem {

struct BuiltinTemplate {
  std::string_view name;
  std::string_view text;  // Jinja
};

std::span<const BuiltinTemplate> builtin_templates();
// nullptr when there is none of that name.
const BuiltinTemplate* find_builtin_template(std::string_view name);
// The one for models that say nothing.
inline constexpr std::string_view kDefaultTemplate = "chatml";

}  // namespace tandem
