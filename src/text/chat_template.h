// ChatTemplate: a model author's Jinja2 template, which turns a conversation into a prompt, ready to run.
//
// Semantics are those of transformers: trim_blocks and lstrip_blocks on, sandboxed, with break and continue,
// raise_exception, strftime_now and its own tojson. Immutable after construction: any thread may render. The
// constructor and the renders throw Error(bad_file) with the template's name and line: for syntax errors,
// raise_exception, and when a limit on operations, depth, memory or output is exceeded.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_span.h"

namespace tandem {

class GgufFile;

struct TemplateLimits {
  size_t n_operations = 50'000'000;          // operations of one render
  size_t n_bytes = size_t{1} << 30;          // of all values it makes
  size_t n_output_bytes = size_t{32} << 20;  // of the prompt
  int n_depth = 1000;                        // nesting of macros, statements and expressions
};

struct RenderOptions {
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
  nlohmann::ordered_json tools = nullptr;                           // null is Python's None
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();  // more variables, by name
  std::optional<std::tm> now;                                       // for strftime_now; default: local time
  TemplateLimits limits = {};
};

// A prompt, with the spans of bytes that came from messages, tools and extra variables. No control token may
// overlap such a span (TokenizeOptions::plain), but ordinary text is tokenized across their ends, as in
// training. A role made of letters, digits, "_" and "-" is not marked: templates build control tokens from
// it.
struct MarkedPrompt {
  std::string text;
  std::vector<TextSpan> user;  // ascending, disjoint
};

class ChatTemplate {
 public:
  // Error messages start with `name`.
  explicit ChatTemplate(std::string_view text, std::string name = "chat template");
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `messages`: an array of objects such as {"role": "user", "content": "Hello"}.
  std::string render(const nlohmann::ordered_json& messages, const RenderOptions& options = {}) const;
  MarkedPrompt render_marked(const nlohmann::ordered_json& messages, const RenderOptions& options = {}) const;

 private:
  struct Parsed;
  std::string name_;
  std::unique_ptr<const Parsed> parsed_;
};

// The template and the texts of the BOS and EOS tokens in a model file; empty where it has none.
struct ModelTemplate {
  std::string text, bos_token, eos_token;
};
ModelTemplate read_model_template(const GgufFile& file);

}  // namespace tandem
