#include "tools/chat/settings.h"

#include <algorithm>
#include <cmath>

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

bool parse_switch(const std::string& name, const std::string& value) {
  return one_of<bool>(name, value, {{"on", true}, {"off", false}});
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
  for (const char* name : {kSeed, kPredict, kShift, kReasoning}) names.emplace_back(name);
  return names;
}

std::string settings_table(const ChatSettings& settings) {
  const SamplerParams& p = settings.conversation.sampling;
  std::string table;
  const auto add = [&](const char* name, const std::string& value) {
    table += format("{:<18} {}\n", name, value);
  };
  for (const Setting& s : kSampling) {
    add(s.name, s.real != nullptr ? format("{:g}", p.*s.real) : std::to_string(p.*s.integer));
  }
  add(kSeed, std::to_string(p.seed));
  add(kPredict, std::to_string(settings.conversation.n_predict));
  add(kShift, settings.conversation.context_shift ? "on" : "off");
  add(kReasoning, reasoning_name(settings.reasoning));
  table.pop_back();
  return table;
}

void change_setting(const ChatSettings& settings, const std::string& given_name, const std::string& value) {
  std::string name = given_name;
  std::replace(name.begin(), name.end(), '-', '_');
  SamplerParams params = settings.conversation.sampling;
  if (name == kPredict) {
    settings.conversation.n_predict = parse_integer(name, value, -1);
  } else if (name == kShift) {
    settings.conversation.context_shift = parse_switch(name, value);
  } else if (name == kReasoning) {
    settings.reasoning = parse_reasoning(name, value);
    settings.conversation.think = settings.reasoning != ShowReasoning::off;
  } else if (name == kSeed) {
    params.seed = parse_integer(name, value, -1, INT64_MAX);
  } else {
    const auto found = std::find_if(std::begin(kSampling), std::end(kSampling),
                                    [&](const Setting& s) { return name == s.name; });
    if (found == std::end(kSampling)) {
      std::string known;
      for (const std::string& n : setting_names()) known += (known.empty() ? "" : ", ") + n;
      throw_error(ErrorCode::usage, "unknown setting '{}'; the settings are {}", printable(given_name),
                  known);
    }
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
