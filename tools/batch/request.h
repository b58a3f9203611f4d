// A line of the input of `tandem batch`: what is to be answered, and how.
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
  // What the command line says holds where a line says nothing. `chat_template` as in choose_template(),
  // asked for only when a line has messages. The model outlives this.
  RequestParser(const Model& model, SamplerParams sampling, GenerateOptions generation,
                std::string chat_template, int64_t n_ctx);

  // {"prompt": "..."} or {"messages": [...]}, and overrides. `line` counts from 1. A line that cannot be is
  // Error(bad_file) that says why, `id` then being what could be read of it.
  BatchRequest parse(int64_t line, const std::string& text, nlohmann::ordered_json& id);

 private:
  using Json = nlohmann::ordered_json;
  void apply(const std::string& key, const Json& value, BatchRequest& r);
  std::shared_ptr<const Grammar> grammar(const std::string& gbnf);
  std::vector<int32_t> prompt(const Json& line);
  std::vector<int32_t> tokens_of(const MarkedPrompt& prompt) const;

  const Model& model_;
  SamplerParams sampling_;
  GenerateOptions generation_;
  std::string template_choice_;
  int64_t n_ctx_;
  ModelTemplate own_;
  std::optional<ChatTemplate> template_;
  std::unordered_map<std::string, std::shared_ptr<const Grammar>> grammars_;
  std::set<std::string> unknown_;  // keys that were said to mean nothing
};

// The id of a line, null where there is none or the line is none of ours.
nlohmann::ordered_json id_of(const std::string& line);

}  // namespace tandem::tools
