// Sampling parameters, with the field's usual names, meanings and defaults. Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class Grammar;

// The stages that users can order. Biases come before all of them, the draw after.
enum class SamplerStage { penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature };

struct LogitBias {
  int32_t token;
  float bias;  // -inf bans the token, +inf leaves only such tokens
};

struct SamplerParams {
  std::vector<SamplerStage> stages = {
      SamplerStage::penalties, SamplerStage::dry,   SamplerStage::top_n_sigma,
      SamplerStage::top_k,     SamplerStage::typ_p, SamplerStage::top_p,
      SamplerStage::min_p,     SamplerStage::xtc,   SamplerStage::temperature};
  int64_t seed = -1;      // -1: random
  uint32_t min_keep = 0;  // top_p, min_p, typ_p and xtc leave at least this many candidates

  float temp = 0.8f;            // <= 0: greedy
  float dynatemp_range = 0.0f;  // temperature moves in temp +- range with the entropy; 0: fixed
  float dynatemp_exponent = 1.0f;

  int32_t top_k = 40;         // <= 0: off
  float top_p = 0.95f;        // >= 1: off
  float min_p = 0.05f;        // <= 0: off
  float typical_p = 1.0f;     // >= 1: off
  float top_n_sigma = -1.0f;  // <= 0: off

  float xtc_probability = 0.0f;  // <= 0: off
  float xtc_threshold = 0.1f;    // > 0.5: off

  int32_t repeat_last_n = 64;   // tokens that the three penalties look back; 0: off, -1: the context
  float repeat_penalty = 1.0f;  // 1: off
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;

  float dry_multiplier = 0.0f;      // 0: off
  float dry_base = 1.75f;           // < 1: off
  int32_t dry_allowed_length = 2;   // repeats shorter than this are free
  int32_t dry_penalty_last_n = -1;  // 0: off, -1: the context
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};

  int32_t mirostat = 0;       // 0: off, 1, 2; replaces every stage but the temperature
  float mirostat_lr = 0.1f;   // eta
  float mirostat_ent = 5.0f;  // tau, in bits

  std::vector<LogitBias> logit_bias;
  bool ignore_eos = false;  // bans every end-of-generation token

  std::shared_ptr<const Grammar> grammar;  // the output must be a text of it; null: unrestricted
};

// Returns the name that users type: "top_k".
std::string_view sampler_stage_name(SamplerStage stage);
// Returns the letter of --sampling-seq: 'k'.
char sampler_stage_letter(SamplerStage stage);

// Parse "penalties;top_k;temperature" and "ekt". Other common spellings of the names are accepted, and a
// stage may appear twice. Both throw Error(usage) with the unknown name and the known ones.
std::vector<SamplerStage> parse_sampler_names(std::string_view names);
std::vector<SamplerStage> parse_sampler_letters(std::string_view letters);
// The inverse of parse_sampler_names.
std::string sampler_names(const std::vector<SamplerStage>& stages);

// Throws Error(usage) for invalid values (NaN, a mirostat of 3, ...).
void validate(const SamplerParams& params);

}  // namespace tandem
