#include "tools/options/defaults.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "tools/options/arguments.h"
#include "tools/options/llama_flags.h"
#include "tools/options/positional.h"

namespace tandem::tools {
namespace {

// Options of which a command takes only one. What is typed replaces what a file says about any of them.
const std::vector<std::vector<std::string>> kRivals = {
    {"model", "hf-repo", "model-url"},
    {"grammar", "grammar-file", "json-schema", "json-schema-file"},
    {"system-prompt", "system-prompt-file"},
    {"samplers", "sampling-seq"},
    {"no-kv-offload", "kv-offload", "kv-split", "kv-layers-gpu"},
    {"cpu-moe", "n-cpu-moe"},
    {"gpu-weights-percent", "cpu-offload-gb"},
    {"max-vram", "gpu-memory-utilization"},
};

std::string upper_name(const std::string& prefix, const std::string& long_name) {
  std::string name = prefix;
  for (const char c : long_name) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// Null if it is not set or empty.
const char* variable(const std::string& name) {
  const char* value = name.empty() ? nullptr : std::getenv(name.c_str());
  return value && *value != '\0' ? value : nullptr;
}

// The variable that sets this option, ours before llama.cpp's; "" if none does.
std::string variable_of(const CLI::Option& option, std::string& name) {
  for (const bool ours : {true, false}) {
    for (const std::string& candidate : option.get_lnames()) {
      name = candidate;
      const std::string usual = upper_name(ours ? "TANDEM_ARG_" : "LLAMA_ARG_", candidate);
      if (variable(usual)) return usual;
      const std::string other(ours ? "" : llama_variable(candidate));
      if (variable(other)) return other;
    }
  }
  return "";
}

std::string checked_value(const CLI::Option& option, const std::string& source, const std::string& value) {
  return is_flag(option) ? flag_value(source, value) : value;
}

// "~/x" as a shell would, for options that take a file.
std::string expanded(const CLI::Option& option, const std::string& value) {
  const char* home = std::getenv("HOME");
  const bool names_file = option.get_type_name().find("FILE") != std::string::npos;
  return names_file && home && value.rfind("~/", 0) == 0 ? home + value.substr(1) : value;
}

bool has(const std::vector<std::string>& names, const CLI::Option& option) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& n) { return option.check_lname(n); });
}

bool is_given(const std::set<const CLI::Option*>& given, const CLI::Option& option) {
  if (given.count(&option)) return true;
  for (const auto& rivals : kRivals) {
    if (!has(rivals, option)) continue;
    if (std::any_of(given.begin(), given.end(), [&](const CLI::Option* o) { return has(rivals, *o); }))
      return true;
  }
  return false;
}

std::vector<std::string> models_in(const std::vector<Default>& list) {
  std::vector<std::string> models;
  for (const Default& d : list) {
    const bool names_model = std::any_of(std::begin(kModelOptions), std::end(kModelOptions),
                                         [&](std::string_view name) { return d.name == name; });
    if (names_model) models.push_back(d.value);
  }
  return models;
}

}  // namespace

Defaults::Defaults(const CLI::App& root, const CLI::App& command, const ConfigChoice& config)
    : command_(command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option == command.get_help_ptr()) continue;
    std::string name;
    const std::string source = variable_of(*option, name);
    if (source.empty()) continue;
    environment_.push_back(
        {option, name, checked_value(*option, source, variable(source)), source, ErrorCode::usage});
  }
  if (!find_long(root, "config") || config.none) return;
  const std::string path = config.path.empty() ? usual_config_path() : config.path;
  if (!path.empty()) file_ = read_config(path, root);
}

bool Defaults::has_model() const {
  if (!models_in(environment_).empty()) return true;
  return std::any_of(file_.sections.begin(), file_.sections.end(), [&](const ConfigSection& section) {
    const bool counts = section.kind == ConfigSection::Kind::general || section.name == command_.get_name();
    return counts && !models_in(of_section(section)).empty();
  });
}

std::vector<Default> Defaults::of_section(const ConfigSection& section) const {
  std::vector<Default> list;
  for (const ConfigEntry& entry : section.entries) {
    const CLI::Option* option = find_long(command_, entry.key);
    if (!option) continue;  // of another command
    const std::string source = format("{}:{}", printable(file_.path, 4096), entry.line);
    const std::string value = is_flag(*option)
                                  ? flag_value(source + ": " + entry.key, entry.value, ErrorCode::bad_file)
                                  : expanded(*option, entry.value);
    list.push_back({option, entry.key, value, source, ErrorCode::bad_file});
  }
  return list;
}

std::vector<Default> Defaults::choose(std::set<const CLI::Option*> given,
                                      std::vector<std::string> models) const {
  std::vector<Default> chosen;
  // Uses a list where nothing before it had a say.
  const auto use = [&](const std::vector<Default>& list) {
    std::set<const CLI::Option*> used;
    for (const Default& d : list) {
      if (is_given(given, *d.option)) continue;
      chosen.push_back(d);
      used.insert(d.option);
    }
    given.insert(used.begin(), used.end());
  };
  const auto sections = [&](ConfigSection::Kind kind, auto&& wanted) {
    std::vector<Default> list;
    for (const ConfigSection& section : file_.sections) {
      if (section.kind != kind || !wanted(section)) continue;
      for (Default& d : of_section(section)) list.push_back(std::move(d));
    }
    return list;
  };
  use(environment_);
  const auto command = sections(ConfigSection::Kind::command, [&](const ConfigSection& section) {
    return section.name == command_.get_name();
  });
  const auto general = sections(ConfigSection::Kind::general, [](const ConfigSection&) { return true; });
  for (const auto* list : {&environment_, &command, &general}) {
    if (models.empty()) models = models_in(*list);
  }
  // Later sections come first, so that one for a single model can follow one for many.
  for (auto s = file_.sections.rbegin(); s != file_.sections.rend(); ++s) {
    const bool meant =
        models.size() == 1 && s->kind == ConfigSection::Kind::model && matches_model(s->name, models.front());
    if (meant) use(of_section(*s));
  }
  use(command);
  use(general);
  return chosen;
}

}  // namespace tandem::tools
