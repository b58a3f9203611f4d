// Parses the input lines of `tandem batch` into requests.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "engine/batcher.h"
#include "text/chat_template.h"

namespace tandem::tools {

class RequestParser {
 public:
  // `sampling` and `generation` are the defaults for lines that do not override them. `chat_template` is as
  // in choose_template() and is needed only for lines with messages. `input`: what warnings call the input. The model must outlive
  // the parser.
  RequestParser(const Model& model, SamplerParams sampling, GenerateOptions generation,
                std::string chat_template, int64_t n_ctx, std::string input);

  // Parses {"prompt": "..."} or {"messages": [...]} with overrides. `line` counts from 1. Throws
  // Error(bad_file) for an invalid line; `id` then holds the line's id, if it could be read.
  BatchRequest parse(int64_t line, const std::string& text, nlohmann::ordered_json& id);

 private:
  using Json = nlohmann::ordered_json;
  void apply(const std::string& key, const Json& value, BatchRequest& r);
  std::shared_ptr<const Grammar> grammar(const std::string& gbnf);
  std::vector<int32_t> prompt(const Json& line);

  const Model& model_;
  SamplerParams sampling_;
  GenerateOptions generation_;
  std::string template_choice_;
  int64_t n_ctx_;
  std::string input_;
  std::optional<ChatTemplate> template_;
  std::unordered_map<std::string, std::shared_ptr<const Grammar>> grammars_;
  std::set<std::string> unknown_;  // unknown keys reported so far
};

// The id of a line; null if it has none or is invalid.
nlohmann::ordered_json id_of(const std::string& line);

}  // namespace tandem::tools
