#include "tools/batch/request.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/chat_prompt.h"
#include "sample/grammar/grammar.h"
#include "sample/json_schema/json_schema.h"
#include "tools/chat/choose_template.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxGrammars = 64;     // compiled grammars to keep
constexpr size_t kMaxUnknownKeys = 16;  // unknown keys to report

[[noreturn]] void refuse(const std::string& key, const char* needed, const Json& value) {
  throw_error(ErrorCode::bad_file, "\"{}\" is {}, needed {}", printable(key),
              printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)), needed);
}

int64_t whole(const std::string& key, const Json& value, int64_t min, int64_t max, const char* needed) {
  const bool in_range =
      value.is_number_unsigned()
          ? value.get<uint64_t>() <= static_cast<uint64_t>(max)
          : value.is_number_integer() && value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  if (!in_range) refuse(key, needed, value);
  return value.get<int64_t>();
}

float real(const std::string& key, const Json& value) {
  if (!value.is_number() || !std::isfinite(value.get<float>())) refuse(key, "a number", value);
  return value.get<float>();
}

std::vector<std::string> stop_texts(const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  const bool all_texts = value.is_array() &&
                         std::all_of(value.begin(), value.end(), [](const Json& s) { return s.is_string(); });
  if (!all_texts) refuse("stop", "a string or a list of strings", value);
  return value.get<std::vector<std::string>>();
}

float* sampling_number(SamplerParams& p, const std::string& key) {
  const std::pair<const char*, float*> numbers[] = {
      {"temperature", &p.temp},
      {"temp", &p.temp},
      {"top_p", &p.top_p},
      {"min_p", &p.min_p},
      {"typical_p", &p.typical_p},
      {"repeat_penalty", &p.repeat_penalty},
      {"presence_penalty", &p.presence_penalty},
      {"frequency_penalty", &p.frequency_penalty},
  };
  const auto found =
      std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& n) { return key == n.first; });
  return found == std::end(numbers) ? nullptr : found->second;
}

}  // namespace

RequestParser::RequestParser(const Model& model, SamplerParams sampling, GenerateOptions generation,
                             std::string chat_template, int64_t n_ctx, std::string input)
    : model_(model),
      sampling_(std::move(sampling)),
      generation_(std::move(generation)),
      template_choice_(std::move(chat_template)),
      n_ctx_(n_ctx),
      input_(std::move(input)) {}

std::shared_ptr<const Grammar> RequestParser::grammar(const std::string& gbnf) {
  const auto known = grammars_.find(gbnf);
  if (known != grammars_.end()) return known->second;
  if (grammars_.size() >= kMaxGrammars) grammars_.clear();
  return grammars_[gbnf] = Grammar::parse(gbnf, {"grammar", ErrorCode::bad_file});
}

// Applies one key of a line; ignores null values.
void RequestParser::apply(const std::string& key, const Json& value, BatchRequest& r) {
  if (value.is_null() || key == "prompt" || key == "messages" || key == "id") return;
  if (float* number = sampling_number(r.sampling, key)) {
    *number = real(key, value);
  } else if (key == "n_predict" || key == "max_tokens") {
    r.generation.n_predict = whole(key, value, -1, INT32_MAX, "a number of tokens, -1 for no limit");
  } else if (key == "top_k") {
    r.sampling.top_k = static_cast<int32_t>(whole(key, value, INT32_MIN, INT32_MAX, "a whole number"));
  } else if (key == "logprobs") {
    r.generation.n_logprobs =
        static_cast<int32_t>(whole(key, value, -1, INT32_MAX, "a whole number from 0, -1 for none"));
  } else if (key == "seed") {
    r.sampling.seed = whole(key, value, -1, INT64_MAX, "a whole number from 0, -1 for a random one");
  } else if (key == "stop") {
    r.generation.stop = stop_texts(value);
  } else if (key == "grammar") {
    if (!value.is_string()) refuse(key, "a string", value);
    r.sampling.grammar = grammar(value.get<std::string>());
  } else if (key == "json_schema") {
    if (!value.is_object() && !value.is_boolean()) refuse(key, "a JSON schema", value);
    r.sampling.grammar = grammar(json_schema_to_gbnf(value.dump(), {"json_schema", ErrorCode::bad_file}));
  } else if (unknown_.size() < kMaxUnknownKeys && unknown_.insert(key).second) {
    log_warning("{}: line {}: unknown option \"{}\", ignored (reported once)", input_, r.index, printable(key));
  }
}

std::vector<int32_t> RequestParser::prompt(const Json& line) {
  const auto text = line.find("prompt"), messages = line.find("messages");
  if ((text == line.end()) == (messages == line.end())) {
    throw_error(ErrorCode::bad_file, "{}",
                text == line.end() ? "found neither \"prompt\" nor \"messages\""
                                   : "found both \"prompt\" and \"messages\", needed only one of them");
  }
  if (text != line.end()) {
    if (!text->is_string()) refuse("prompt", "a string", *text);
    return model_.vocab().tokenize(text->get_ref<const std::string&>());
  }
  const bool are_messages = messages->is_array() && !messages->empty() &&
                            std::all_of(messages->begin(), messages->end(), [](const Json& m) {
                              return m.is_object() && m.contains("role") && m["role"].is_string();
                            });
  if (!are_messages) refuse("messages", "a list of objects with a role and a content", *messages);
  if (!template_) template_ = choose_template(model_, template_choice_);
  return chat_prompt(model_, *template_, *messages);
}

BatchRequest RequestParser::parse(int64_t line, const std::string& text, Json& id) {
  const Json json = parse_json<Json>(text, "");
  if (!json.is_object()) throw Error(ErrorCode::bad_file, "not a JSON object");
  if (const auto found = json.find("id"); found != json.end()) {
    if (found->is_structured()) refuse("id", "a string, a number, true, false or null", *found);
    id = *found;
  }
  BatchRequest r;
  r.index = line;
  r.sampling = sampling_;
  r.generation = generation_;
  if (r.sampling.seed >= 0)
    r.sampling.seed = static_cast<int64_t>(
        (static_cast<uint64_t>(r.sampling.seed) + static_cast<uint64_t>(line - 1)) & INT64_MAX);
  if (json.contains("grammar") && json.contains("json_schema")) {
    throw Error(ErrorCode::bad_file, "found both \"grammar\" and \"json_schema\", needed only one of them");
  }
  for (const auto& [key, value] : json.items()) apply(key, value, r);
  validate(r.sampling);
  r.prompt = prompt(json);
  const auto n = static_cast<int64_t>(r.prompt.size());
  if (n == 0) throw Error(ErrorCode::bad_file, "the prompt is empty");
  if (n > n_ctx_) {
    throw_error(ErrorCode::bad_file,
                "the prompt has {} tokens, but the context of a sequence holds {} (-c, --ctx-sequence)", n,
                n_ctx_);
  }
  return r;
}

Json id_of(const std::string& line) {
  const Json json = parse_json_or_null<Json>(line);
  if (!json.is_object()) return nullptr;
  const auto found = json.find("id");
  return found == json.end() || found->is_structured() ? Json(nullptr) : *found;
}

}  // namespace tandem::tools
