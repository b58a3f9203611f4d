#include "sample/params.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "base/error.h"
#include "base/setting.h"
#include "base/text.h"

namespace tandem {
namespace {

struct StageInfo {
  SamplerStage stage;
  std::string_view name;
  char letter;
  std::array<std::string_view, 3> other_names;  // with '_' for '-'
};

constexpr StageInfo kStages[] = {
    {SamplerStage::penalties, "penalties", 'e', {}},
    {SamplerStage::dry, "dry", 'd', {}},
    {SamplerStage::top_n_sigma, "top_n_sigma", 's', {"top_nsigma"}},
    {SamplerStage::top_k, "top_k", 'k', {}},
    {SamplerStage::typ_p, "typ_p", 'y', {"typical", "typical_p", "typ"}},
    {SamplerStage::top_p, "top_p", 'p', {"nucleus"}},
    {SamplerStage::min_p, "min_p", 'm', {}},
    {SamplerStage::xtc, "xtc", 'x', {}},
    {SamplerStage::temperature, "temperature", 't', {"temp"}},
};

const StageInfo& info(SamplerStage stage) {
  return *std::find_if(std::begin(kStages), std::end(kStages),
                       [stage](const StageInfo& s) { return s.stage == stage; });
}

SamplerStage stage_from_name(std::string_view text) {
  std::string name;
  for (const char c : text) {
    name += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const StageInfo& s : kStages) {
    const bool other = std::find(s.other_names.begin(), s.other_names.end(), name) != s.other_names.end();
    if (!name.empty() && (name == s.name || other)) return s.stage;
  }
  std::string known;
  for (const StageInfo& s : kStages) known += (known.empty() ? "" : " ") + std::string(s.name);
  throw_error(ErrorCode::usage, "unknown sampler '{}'; known are {}", printable(text), known);
}

void require(bool ok, Setting setting, double found, const char* needed) {
  if (ok) return;
  throw_error(ErrorCode::usage, "{} is {:g}, but must be {}", setting_text(setting), found, needed);
}

}  // namespace

std::string_view sampler_stage_name(SamplerStage stage) {
  return info(stage).name;
}
char sampler_stage_letter(SamplerStage stage) {
  return info(stage).letter;
}

std::vector<SamplerStage> parse_sampler_names(std::string_view names) {
  std::vector<SamplerStage> stages;
  if (trimmed(names).empty()) return stages;
  while (true) {
    const size_t end = names.find(';');
    const std::string_view name = trimmed(names.substr(0, end));
    stages.push_back(stage_from_name(name));
    if (end == std::string_view::npos) return stages;
    names.remove_prefix(end + 1);
    if (trimmed(names).empty()) return stages;  // a trailing ';'
  }
}

std::vector<SamplerStage> parse_sampler_letters(std::string_view letters) {
  std::vector<SamplerStage> stages;
  for (const char c : letters) {
    const auto* s = std::find_if(std::begin(kStages), std::end(kStages),
                                 [c](const StageInfo& i) { return i.letter == c; });
    if (s == std::end(kStages)) {
      throw_error(ErrorCode::usage,
                  "unknown sampler letter '{}' in '{}'; known are e (penalties), d (dry), "
                  "s (top_n_sigma), k (top_k), y (typ_p), p (top_p), m (min_p), x (xtc), t (temperature)",
                  printable(std::string_view(&c, 1)), printable(letters));
    }
    stages.push_back(s->stage);
  }
  return stages;
}

std::string sampler_names(const std::vector<SamplerStage>& stages) {
  std::string text;
  for (const SamplerStage stage : stages) {
    if (!text.empty()) text += ';';
    text += sampler_stage_name(stage);
  }
  return text;
}

void validate(const SamplerParams& p) {
  const auto finite = [](float value, Setting setting) {
    require(std::isfinite(value), setting, value, "a finite number");
  };
  // More than all of the probability, or less than none, is a mistake, such as 95 for 0.95.
  const auto share = [](float value, Setting setting) {
    require(value >= 0 && value <= 1, setting, value, "a number from 0 to 1");
  };
  require(p.temp >= 0 && std::isfinite(p.temp), Setting::temp, p.temp, "a finite number, 0 or more");
  finite(p.dynatemp_exponent, Setting::dynatemp_exponent);
  require(p.dynatemp_range >= 0 && std::isfinite(p.dynatemp_range), Setting::dynatemp_range, p.dynatemp_range,
          "a finite number, 0 or more");
  share(p.top_p, Setting::top_p);
  share(p.min_p, Setting::min_p);
  share(p.typical_p, Setting::typical_p);
  require(!std::isnan(p.top_n_sigma), Setting::top_n_sigma, p.top_n_sigma, "a number");
  share(p.xtc_probability, Setting::xtc_probability);
  require(!std::isnan(p.xtc_threshold), Setting::xtc_threshold, p.xtc_threshold, "a number");
  require(p.repeat_last_n >= -1, Setting::repeat_last_n, p.repeat_last_n, "-1 or more");
  require(p.repeat_penalty > 0 && std::isfinite(p.repeat_penalty), Setting::repeat_penalty, p.repeat_penalty,
          "a finite number above 0");
  finite(p.presence_penalty, Setting::presence_penalty);
  finite(p.frequency_penalty, Setting::frequency_penalty);
  finite(p.dry_multiplier, Setting::dry_multiplier);
  finite(p.dry_base, Setting::dry_base);
  require(p.dry_allowed_length >= 0, Setting::dry_allowed_length, p.dry_allowed_length, "0 or more");
  require(p.dry_penalty_last_n >= -1, Setting::dry_penalty_last_n, p.dry_penalty_last_n, "-1 or more");
  require(p.mirostat >= 0 && p.mirostat <= 2, Setting::mirostat, p.mirostat, "0, 1 or 2");
  finite(p.mirostat_lr, Setting::mirostat_lr);
  require(p.mirostat_ent > 0 && std::isfinite(p.mirostat_ent), Setting::mirostat_ent, p.mirostat_ent,
          "a finite number above 0");
  require(p.seed >= -1, Setting::seed, static_cast<double>(p.seed), "-1 or more");
  for (const LogitBias& b : p.logit_bias) {
    if (std::isnan(b.bias))
      throw_error(ErrorCode::usage, "the logit bias of token {} is not a number", b.token);
  }
}

}  // namespace tandem
