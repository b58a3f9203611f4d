// The "Sampling" group.

#include "base/error.h"
#include "tools/options/command_line.h"
#include "tools/options/options.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

constexpr const char* kSamplingGroup = "Sampling";

void add_order_options(CLI::App& app, SamplerParams& p) {
  choice(app, "--samplers", "NAMES", "samplers in this order, separated by ;",
         sampler_names(p.stages).c_str(),
         [&p](const std::string& value) { p.stages = parse_sampler_names(value); })
      .group(kSamplingGroup);
  std::string letters;
  for (const SamplerStage stage : p.stages) letters += sampler_stage_letter(stage);
  choice(app, "--sampling-seq,--sampler-seq", "LETTERS", "samplers in this order, one letter each",
         letters.c_str(), [&p](const std::string& value) { p.stages = parse_sampler_letters(value); })
      .group(kSamplingGroup);
  choice(app, "-s,--seed", "N", "random seed; the same seed gives the same text, -1: random", "-1",
         [&p](const std::string& value) { p.seed = parse_integer("--seed", value, -1, INT64_MAX); })
      .group(kSamplingGroup);
}

void add_truncation_options(CLI::App& app, SamplerParams& p) {
  const auto add = [&app](const char* names, float& target, const char* help) {
    real(app, names, target, help).group(kSamplingGroup);
  };
  add("--temp,--temperature", p.temp, "temperature, 0: always the most likely token");
  integer(app, "--top-k", p.top_k, INT32_MIN, "keep the N most likely tokens, 0: off").group(kSamplingGroup);
  add("--top-p", p.top_p, "keep the most likely tokens with this total probability, 1: off");
  add("--min-p", p.min_p, "keep tokens with at least this share of the highest probability, 0: off");
  add("--top-nsigma,--top-n-sigma", p.top_n_sigma,
      "keep logits within N standard deviations of the largest, -1: off");
  add("--typical,--typical-p", p.typical_p, "keep the most typical tokens with this probability, 1: off");
  add("--xtc-probability", p.xtc_probability, "probability of removing the top choices (XTC), 0: off");
  add("--xtc-threshold", p.xtc_threshold, "minimum probability of a top choice (XTC), above 0.5: off");
  add("--dynatemp-range", p.dynatemp_range, "range of the temperature, which follows the entropy, 0: off");
  add("--dynatemp-exp", p.dynatemp_exponent, "exponent of the dynamic temperature");
  integer(app, "--mirostat", p.mirostat, 0, "use Mirostat 1 or 2 instead of the other samplers, 0: off")
      .group(kSamplingGroup);
  add("--mirostat-lr", p.mirostat_lr, "Mirostat learning rate, eta");
  add("--mirostat-ent", p.mirostat_ent, "Mirostat target surprise in bits, tau");
}

void add_penalty_options(CLI::App& app, SamplerParams& p) {
  const auto add = [&app](const char* names, float& target, const char* help) {
    real(app, names, target, help).group(kSamplingGroup);
  };
  integer(app, "--repeat-last-n", p.repeat_last_n, -1,
          "apply penalties to the last N tokens, 0: off, -1: the whole context")
      .group(kSamplingGroup);
  add("--repeat-penalty", p.repeat_penalty, "divide the logits of seen tokens by this, 1: off");
  add("--presence-penalty", p.presence_penalty, "subtract this from the logits of seen tokens, 0: off");
  add("--frequency-penalty", p.frequency_penalty, "subtract this for each occurrence of a token, 0: off");
  add("--dry-multiplier", p.dry_multiplier, "strength of the penalty on repeated sequences (DRY), 0: off");
  add("--dry-base", p.dry_base, "growth of the DRY penalty with each repeated token");
  integer(app, "--dry-allowed-length", p.dry_allowed_length, 0,
          "do not penalize repeats shorter than this (DRY)")
      .group(kSamplingGroup);
  integer(app, "--dry-penalty-last-n", p.dry_penalty_last_n, -1,
          "search the last N tokens for repeats (DRY), 0: off, -1: the whole context")
      .group(kSamplingGroup);
  repeated(
      app, "--dry-sequence-breaker", "TEXT",
      "do not search for repeats across this text (DRY); the first use clears the defaults (newline, colon, "
      "double quote, asterisk), 'none' adds nothing; repeatable",
      [&p](const std::vector<std::string>& values) {
        p.dry_sequence_breakers.clear();
        for (const std::string& value : values) {
          if (value.empty()) {
            throw_error(ErrorCode::usage, "--dry-sequence-breaker: an empty text breaks nothing");
          }
          if (value != "none") p.dry_sequence_breakers.push_back(value);
        }
      })
      .group(kSamplingGroup);
}

}  // namespace

void add_sampling_options(CLI::App& app, SamplerParams& p) {
  add_order_options(app, p);
  add_truncation_options(app, p);
  add_penalty_options(app, p);
  repeated(app, "-l,--logit-bias", "TOKEN_ID(+/-)BIAS",
           "add BIAS to the logit of a token, 15043+1 or 15043-0.5; 15043-inf: never; repeatable",
           [&p](const std::vector<std::string>& values) {
             for (const std::string& value : values) p.logit_bias.push_back(parse_logit_bias(value));
           })
      .group(kSamplingGroup);
  flag(app, "--ignore-eos", p.ignore_eos, "continue past the end token, up to -n tokens").group(kSamplingGroup);
  add_grammar_options(app, p);
}

}  // namespace tandem::tools
