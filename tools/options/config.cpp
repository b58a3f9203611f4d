#include "tools/options/config.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/utf8.h"
#include "tools/options/arguments.h"
#include "tools/options/suggest.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t start = text.find_first_not_of(kBlank);
  if (start == std::string_view::npos) return {};
  return text.substr(start, text.find_last_not_of(kBlank) - start + 1);
}

class Parser {
 public:
  Parser(std::string path, const CLI::App& root) : file_{std::move(path), {}}, root_(root) {
    file_.sections.push_back({});
    section_options_ = all_options();
  }

  ConfigFile parse(std::string_view text) {
    if (valid_utf8_prefix(text) != text.size()) {
      const auto upto = text.substr(0, valid_utf8_prefix(text));
      line_ = static_cast<int>(std::count(upto.begin(), upto.end(), '\n')) + 1;
      fail("found bytes that are not UTF-8");
    }
    if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);  // as some editors start a file
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      ++line_;
      add(trimmed(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::bad_file, "{}:{}: {}", printable(file_.path, 4096), line_, what);
  }

  void add(std::string_view line) {
    if (line.empty() || line[0] == '#' || line[0] == ';') return;
    line[0] == '[' ? begin_section(line) : add_entry(line);
  }

  void begin_section(std::string_view line) {
    const size_t end = line.rfind(']');
    const std::string_view after = end == std::string_view::npos ? line : trimmed(line.substr(end + 1));
    if (end == std::string_view::npos || (!after.empty() && after[0] != '#' && after[0] != ';')) {
      fail(format("'{}' is not a section such as [chat]", printable(line)));
    }
    const std::string name(trimmed(line.substr(1, end - 1)));
    if (name.rfind("model ", 0) == 0) {
      file_.sections.push_back({ConfigSection::Kind::model, std::string(trimmed(name.substr(6))), {}});
      section_options_ = all_options();
      return;
    }
    std::vector<std::string> known;
    for (const CLI::App* command : commands_of(root_)) {
      known.push_back(command->get_name());
      if (command->get_name() != name) continue;
      file_.sections.push_back({ConfigSection::Kind::command, name, {}});
      section_options_ = long_names(*command);
      return;
    }
    fail(format("unknown section [{}]: needed [COMMAND] or [model NAME]{}", printable(name),
                did_you_mean(name, known)));
  }

  void add_entry(std::string_view line) {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      fail(format("'{}' is not a setting such as ctx-size = 8192", printable(line)));
    }
    std::string key(trimmed(line.substr(0, equals)));
    if (key.rfind("--", 0) == 0) key.erase(0, 2);
    std::replace(key.begin(), key.end(), '_', '-');
    check_key(key);
    const std::string value = value_of(trimmed(line.substr(equals + 1)));
    if (value.empty()) fail(format("{} has no value", key));
    file_.sections.back().entries.push_back({key, value, line_});
  }

  void check_key(const std::string& key) const {
    const ConfigSection& section = file_.sections.back();
    if (section.kind == ConfigSection::Kind::model && (key == "model" || key == "hf-repo")) {
      fail(format("{} cannot be in a section for a model", key));
    }
    if (std::find(section_options_.begin(), section_options_.end(), key) != section_options_.end()) return;
    const std::string_view long_form = long_name_of(key);
    const std::string hint =
        !long_form.empty() ? format("; did you mean '{}'?", long_form) : did_you_mean(key, section_options_);
    if (section.kind == ConfigSection::Kind::command) {
      fail(format("'{}' is not an option of {}{}", printable(key), section.name, hint));
    }
    fail(format("unknown option '{}'{}", printable(key), hint));
  }

  // Without a comment at the end. Quotes keep blanks, # and ; as they are.
  std::string value_of(std::string_view text) const {
    if (!text.empty() && (text[0] == '"' || text[0] == '\'')) {
      const size_t close = text.rfind(text[0]);
      const std::string_view after = close == 0 ? "" : trimmed(text.substr(close + 1));
      if (close == 0) fail("a quote is not closed");
      if (after.empty() || after[0] == '#' || after[0] == ';') return std::string(text.substr(1, close - 1));
      fail(format("found '{}' after the closing quote", printable(after)));
    }
    for (size_t i = 1; i < text.size(); ++i) {
      const bool starts = (text[i] == '#' || text[i] == ';') && (text[i - 1] == ' ' || text[i - 1] == '\t');
      if (starts) return std::string(trimmed(text.substr(0, i)));
    }
    return std::string(text);
  }

  std::vector<std::string> all_options() const {
    std::vector<std::string> names;
    for (const CLI::App* command : commands_of(root_)) {
      for (std::string& name : long_names(*command)) names.push_back(std::move(name));
    }
    return names;
  }

  ConfigFile file_;
  const CLI::App& root_;
  std::vector<std::string> section_options_;  // the keys that the current section may have
  int line_ = 0;
};

}  // namespace

std::string usual_config_path() {
  if (const char* path = std::getenv("TANDEM_CONFIG")) return path;
  const char* folder = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  std::string path;
  if (folder && *folder == '/') {
    path = folder;
  } else if (home && *home == '/') {
    path = std::string(home) + "/.config";
  } else {
    return "";
  }
  path += "/tandem/config.ini";
  struct stat found;
  return stat(path.c_str(), &found) == 0 ? path : "";
}

ConfigFile read_config(const std::string& path, const CLI::App& root) {
  return parse_config(read_text_file(path, kMaxBytes), path, root);
}

ConfigFile parse_config(std::string_view text, const std::string& path, const CLI::App& root) {
  return Parser(path, root).parse(text);
}

bool matches_model(const std::string& pattern, const std::string& model) {
  const std::filesystem::path path(model);
  const char* home = std::getenv("HOME");
  const std::string expanded = pattern.rfind("~/", 0) == 0 && home ? home + pattern.substr(1) : pattern;
  for (const std::string& name : {model, path.filename().string(), path.stem().string()}) {
    if (fnmatch(expanded.c_str(), name.c_str(), FNM_CASEFOLD) == 0) return true;
  }
  return false;
}

}  // namespace tandem::tools
