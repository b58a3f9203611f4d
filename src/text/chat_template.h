// ChatTemplate: the text that a model's author wrote to turn a conversation into a prompt, ready to run.
//
// Made once from the template (Jinja2, as transformers runs it: trim_blocks and lstrip_blocks on, sandboxed,
// with break and continue, raise_exception, strftime_now and its own tojson), then immutable: any thread may
// render. Both the constructor and the renders throw Error(bad_file) that names the template and the line:
// for a syntax error, for what the template itself refuses (raise_exception), and past the limits on steps,
// depth, memory and output.
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
  size_t n_steps = 50'000'000;               // what a render may compute
  size_t n_bytes = size_t{1} << 30;          // of all values it makes
  size_t n_output_bytes = size_t{32} << 20;  // of the prompt
  int n_depth = 1000;                        // of expressions in statements in macros
};

struct RenderOptions {
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
  nlohmann::ordered_json tools = nullptr;                           // null is Python's None
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();  // further variables by name
  std::optional<std::tm> now;  // what strftime_now shows; the local time when not given
  TemplateLimits limits = {};
};

// A prompt that remembers which bytes came from messages, tools and extra variables. A tokenizer must find no
// control token that touches such a span (TokenizeOptions::plain); it should still tokenize ordinary text
// across their ends, as the model was trained. A role made of letters, digits, "_" and "-" is not marked:
// templates spell control tokens with it.
struct MarkedPrompt {
  std::string text;
  std::vector<TextSpan> user;  // ascending, apart
};

class ChatTemplate {
 public:
  // `name` is what errors start with.
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

// What a model file says: tokenizer.chat_template and the texts of its BOS and EOS tokens, empty where it has
// none.
struct ModelTemplate {
  std::string text, bos_token, eos_token;
};
ModelTemplate read_model_template(const GgufFile& file);

}  // namespace tandem
