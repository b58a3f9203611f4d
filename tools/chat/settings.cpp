#include "tools/chat/settings.h"

#include <algorithm>
#include <cmath>

#include "tools/options/suggest.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

// A sampling setting: exactly one of `real` and `integer` is set.
struct Setting {
  const char* name;
  float SamplerParams::*real = nullptr;
  int32_t SamplerParams::*integer = nullptr;
  int32_t min = INT32_MIN;  // of the integer
};

constexpr Setting kSampling[] = {
    {"temp", &SamplerParams::temp},
    {"top_k", nullptr, &SamplerParams::top_k},
    {"top_p", &SamplerParams::top_p},
    {"min_p", &SamplerParams::min_p},
    {"typical_p", &SamplerParams::typical_p},
    {"top_n_sigma", &SamplerParams::top_n_sigma},
    {"xtc_probability", &SamplerParams::xtc_probability},
    {"xtc_threshold", &SamplerParams::xtc_threshold},
    {"repeat_last_n", nullptr, &SamplerParams::repeat_last_n, -1},
    {"repeat_penalty", &SamplerParams::repeat_penalty},
    {"presence_penalty", &SamplerParams::presence_penalty},
    {"frequency_penalty", &SamplerParams::frequency_penalty},
    {"dry_multiplier", &SamplerParams::dry_multiplier},
    {"mirostat", nullptr, &SamplerParams::mirostat, 0},
    {"mirostat_lr", &SamplerParams::mirostat_lr},
    {"mirostat_ent", &SamplerParams::mirostat_ent},
};
constexpr const char* kSeed = "seed";
constexpr const char* kPredict = "n_predict";
constexpr const char* kShift = "context_shift";
constexpr const char* kReasoning = "reasoning";
constexpr const char* kMarkdown = "markdown";

bool parse_switch(const std::string& name, const std::string& value) {
  return one_of<bool>(name, value, {{"on", true}, {"off", false}});
}

const Setting* find_sampling(const std::string& name) {
  const auto found = std::find_if(std::begin(kSampling), std::end(kSampling),
                                  [&](const Setting& s) { return name == s.name; });
  return found == std::end(kSampling) ? nullptr : found;
}

std::string canonical(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

[[noreturn]] void throw_unknown(const std::string& name) {
  const std::string hint = did_you_mean(name, setting_names());
  if (!hint.empty()) throw_error(ErrorCode::usage, "unknown setting '{}'{}", printable(name), hint);
  throw_error(ErrorCode::usage, "unknown setting '{}'; /set lists them", printable(name));
}

}  // namespace

ShowReasoning parse_reasoning(const std::string& option, const std::string& text) {
  return one_of<ShowReasoning>(
      option, text,
      {{"show", ShowReasoning::show}, {"hide", ShowReasoning::hide}, {"off", ShowReasoning::off}});
}

const char* reasoning_name(ShowReasoning show) {
  switch (show) {
    case ShowReasoning::show: return "show";
    case ShowReasoning::hide: return "hide";
    case ShowReasoning::off: return "off";
  }
  return "";
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const Setting& s : kSampling) names.emplace_back(s.name);
  for (const char* name : {kSeed, kPredict, kShift, kReasoning, kMarkdown}) names.emplace_back(name);
  return names;
}

std::string setting_value(const ChatSettings& settings, const std::string& given_name) {
  const std::string name = canonical(given_name);
  const SamplerParams& p = settings.conversation.sampling;
  if (name == kSeed) return std::to_string(p.seed);
  if (name == kPredict) return std::to_string(settings.conversation.n_predict);
  if (name == kShift) return settings.conversation.context_shift ? "on" : "off";
  if (name == kReasoning) return reasoning_name(settings.view.reasoning);
  if (name == kMarkdown) return settings.view.markdown ? "on" : "off";
  const Setting* s = find_sampling(name);
  if (s == nullptr) throw_unknown(given_name);
  return s->real != nullptr ? format("{:g}", p.*s->real) : std::to_string(p.*s->integer);
}

std::string settings_table(const ChatSettings& settings) {
  std::string table;
  for (const std::string& name : setting_names())
    table += format("{:<18} {}\n", name, setting_value(settings, name));
  table.pop_back();
  return table;
}

void change_setting(const ChatSettings& settings, const std::string& given_name, const std::string& value) {
  const std::string name = canonical(given_name);
  SamplerParams params = settings.conversation.sampling;
  if (name == kPredict) {
    settings.conversation.n_predict = parse_integer(name, value, -1);
  } else if (name == kShift) {
    settings.conversation.context_shift = parse_switch(name, value);
  } else if (name == kMarkdown) {
    settings.view.markdown = parse_switch(name, value);
  } else if (name == kReasoning) {
    settings.view.reasoning = parse_reasoning(name, value);
    settings.conversation.think = settings.view.reasoning != ShowReasoning::off;
  } else if (name == kSeed) {
    params.seed = parse_integer(name, value, -1, INT64_MAX);
  } else {
    const Setting* found = find_sampling(name);
    if (found == nullptr) throw_unknown(given_name);
    if (found->real != nullptr) {
      params.*found->real = static_cast<float>(parse_real(name, value, -HUGE_VAL));
    } else {
      params.*found->integer = static_cast<int32_t>(parse_integer(name, value, found->min));
    }
  }
  validate(params);
  settings.conversation.sampling = params;
}

}  // namespace tandem::tools
