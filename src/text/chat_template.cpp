#include "text/chat_template.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "gguf/file.h"
#include "jinja/interp.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"

namespace tandem {

using Json = nlohmann::ordered_json;

struct ChatTemplate::Parsed {
  jinja::Body body;
};

namespace {

[[noreturn]] void template_error(const std::string& name, int line, const char* message) {
  throw_error(ErrorCode::bad_file, "{}, line {}: {}", name, line, printable(message, 500));
}

jinja::Value number_value(const Json& json) {
  if (json.is_number_float()) return jinja::Value(json.get<double>());
  const bool large = json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  return large ? jinja::Value(json.get<double>()) : jinja::Value(json.get<int64_t>());
}

bool is_plain_role(const std::string& role) {
  return std::all_of(role.begin(), role.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

jinja::Value marked(const std::string& text) {
  return jinja::Value(jinja::Text(text, jinja::Origin::user));
}

jinja::Value value_of(const Json& json, size_t depth) {
  if (depth >= jinja::kMaxNesting) throw jinja::Failure("the conversation nests too deeply");
  switch (json.type()) {
    case Json::value_t::boolean: return jinja::Value(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float: return number_value(json);
    case Json::value_t::string: return marked(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<jinja::Value> items;
      for (const Json& item : json) items.push_back(value_of(item, depth + 1));
      return jinja::Value::list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<jinja::DictData>();
      for (const auto& [key, item] : json.items()) dict->set(marked(key), value_of(item, depth + 1));
      return jinja::Value(std::shared_ptr<const jinja::DictData>(std::move(dict)));
    }
    default: return jinja::Value(jinja::None{});
  }
}

// Converts a message; a plain role is not marked.
jinja::Value message_value(const Json& json) {
  if (!json.is_object()) return value_of(json, 1);
  auto dict = std::make_shared<jinja::DictData>();
  for (const auto& [key, item] : json.items()) {
    const bool plain_role =
        key == "role" && item.is_string() && is_plain_role(item.get_ref<const std::string&>());
    dict->set(marked(key), plain_role ? jinja::Value(item.get_ref<const std::string&>()) : value_of(item, 2));
  }
  return jinja::Value(std::shared_ptr<const jinja::DictData>(std::move(dict)));
}

jinja::Value messages_value(const Json& messages) {
  std::vector<jinja::Value> items;
  for (const Json& message : messages) items.push_back(message_value(message));
  return jinja::Value::list(std::move(items));
}

std::tm local_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  return now;
}

std::vector<std::pair<std::string, jinja::Value>> variables_of(const Json& messages,
                                                               const RenderOptions& options) {
  std::vector<std::pair<std::string, jinja::Value>> variables = {
      {"messages", messages_value(messages)},
      {"tools", value_of(options.tools, 0)},
      {"documents", jinja::Value(jinja::None{})},
      {"add_generation_prompt", jinja::Value(options.add_generation_prompt)},
      {"bos_token", jinja::Value(options.bos_token)},
      {"eos_token", jinja::Value(options.eos_token)},
  };
  for (const auto& [name, value] : options.extra.items()) variables.emplace_back(name, value_of(value, 0));
  return variables;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view text, std::string name) : name_(std::move(name)) {
  try {
    parsed_ = std::make_unique<const Parsed>(Parsed{jinja::Parser(jinja::tokenize_template(text)).parse()});
  } catch (const jinja::SyntaxError& e) {
    template_error(name_, e.line(), e.what());
  } catch (const jinja::Failure& e) {
    throw_error(ErrorCode::bad_file, "{}: {}", name_, printable(e.what(), 500));
  }
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(const Json& messages, const RenderOptions& options) const {
  return render_marked(messages, options).text;
}

MarkedPrompt ChatTemplate::render_marked(const Json& messages, const RenderOptions& options) const {
  if (!messages.is_array()) throw_error(ErrorCode::bad_file, "{}: the messages are not an array", name_);
  if (!options.extra.is_object())
    throw_error(ErrorCode::bad_file, "{}: the variables are not an object", name_);
  const TemplateLimits& limits = options.limits;
  jinja::Interp interp({limits.n_operations, limits.n_bytes, limits.n_output_bytes, limits.n_depth},
                       options.now ? *options.now : local_time());
  try {
    const jinja::Text text = interp.run(parsed_->body, variables_of(messages, options));
    MarkedPrompt prompt{text.bytes(), {}};
    for (const auto& span : text.user_spans()) prompt.user.push_back({span.begin, span.end});
    return prompt;
  } catch (const jinja::Failure& e) {
    template_error(name_, interp.line(), e.what());
  }
}

namespace {

std::string token_text(const GgufFile& file, const char* id_key) {
  const Metadata& metadata = file.metadata();
  if (!metadata.find(id_key) || !metadata.find("tokenizer.ggml.tokens")) return "";
  const auto id = metadata.get<uint32_t>(id_key);
  const auto tokens = metadata.get_strings("tokenizer.ggml.tokens");
  if (id >= tokens.size()) {
    throw_error(ErrorCode::bad_file, "{} is {}, but there are {} tokens", id_key, id, tokens.size());
  }
  return std::string(tokens[id]);
}

}  // namespace

ModelTemplate read_model_template(const GgufFile& file) {
  static constexpr const char* kKey = "tokenizer.chat_template";
  ModelTemplate model;
  if (file.metadata().find(kKey)) model.text = file.metadata().get<std::string>(kKey);
  model.bos_token = token_text(file, "tokenizer.ggml.bos_token_id");
  model.eos_token = token_text(file, "tokenizer.ggml.eos_token_id");
  return model;
}

}  // namespace tandem
