#include "tools/reference/describe.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "tools/options/arguments.h"
#include "tools/options/options.h"
#include "tools/options/positional.h"
#include "tools/options/types.h"
#include "tools/quantize/mix.h"

namespace tandem::tools {
namespace {

constexpr const char* kQuantizeArguments = "IN.gguf [OUT.gguf] TYPE [THREADS]";

// The words of "N|all|auto" that are values; upper case stands for something else.
std::vector<std::string> words_of(const std::string& type) {
  std::vector<std::string> words;
  if (type.find('|') == std::string::npos) return words;
  for (const std::string& word : CLI::detail::split(type, '|')) {
    const bool is_value = !word.empty() && std::none_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isupper(c) || c == ' ' || c == '[';
    });
    if (is_value) words.push_back(word);
  }
  return words;
}

ValueKind kind_of(const CLI::Option& option, const std::string& type, const std::vector<std::string>& words) {
  if (is_flag(option) && !option.get_positional()) return ValueKind::none;
  if (option.check_lname("model") || type.find(".gguf") != std::string::npos) return ValueKind::model;
  if (!words.empty()) return ValueKind::words;
  if (type.find("FILE") != std::string::npos || type == "OUT" || type == "IMATRIX") return ValueKind::file;
  return type == "DIR" ? ValueKind::folder : ValueKind::other;
}

}  // namespace

DescribedOption describe(const CLI::Option& option) {
  DescribedOption d;
  for (const std::string& name : option.get_snames()) d.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    const std::string_view letters = multi_letter_short_form(name);
    if (!letters.empty()) d.names.push_back("-" + std::string(letters));
  }
  for (const std::string& name : option.get_lnames()) d.names.push_back("--" + name);
  d.help = option.get_description();
  std::replace(d.help.begin(), d.help.end(), '\n', ' ');
  if (!is_flag(option) || option.get_positional()) d.placeholder = option.get_type_name();
  d.optional_value = option.get_expected_min() == 0;
  const std::string type = option.get_type_name();
  if (option.check_lname("cache-type-k") || option.check_lname("cache-type-v")) {
    d.words = cache_dtype_names();
  } else if (type == kQuantizeArguments) {
    for (const FileTypeInfo& info : all_file_types()) d.words.emplace_back(info.name);
  } else {
    d.words = words_of(type);
  }
  d.kind = kind_of(option, type, d.words);
  return d;
}

DescribedCommand describe(const CLI::App& command) {
  DescribedCommand d{command.get_name(), command.get_description(), {}, {}};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    if (option->nonpositional()) d.options.push_back(describe(*option));
    if (!option->get_positional()) continue;
    d.arguments.push_back(describe(*option));
    if (option->get_type_name() != "COMMAND" || !command.get_parent()) continue;
    d.arguments.back().kind = ValueKind::words;
    for (const CLI::App* named : commands_of(*command.get_parent())) {
      d.arguments.back().words.push_back(named->get_name());
    }
  }
  for (const std::string_view name : positional_options(command.get_name()).names) {
    const CLI::Option* option = find_long(command, std::string(name));
    if (option && d.arguments.size() < positional_options(command.get_name()).names.size()) {
      d.arguments.push_back(describe(*option));
    }
  }
  return d;
}

}  // namespace tandem::tools
