#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/random_seed.h"
#include "base/setting.h"
#include "sample/temperature.h"
#include "sample/truncation.h"
#include "sample/xtc.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint64_t resolve_seed(int64_t seed) {
  if (seed >= 0) return static_cast<uint64_t>(seed);
  return random_seed() & 0xffffffffu;  // 32 bits, so that it is easy to type
}

// Validates and completes the parameters: ignore_eos becomes biases.
SamplerParams complete(SamplerParams params, const SamplerModel& model) {
  validate(params);
  TANDEM_CHECK(model.n_vocab > 0 && model.n_ctx >= 0);
  for (const LogitBias& b : params.logit_bias) {
    if (b.token < 0 || b.token >= model.n_vocab) {
      throw_error(ErrorCode::usage, "{}: token {} does not exist, the vocabulary has {}",
                  setting_text(Setting::logit_bias), b.token, model.n_vocab);
    }
  }
  if (params.ignore_eos) {
    for (const int32_t token : model.eog) params.logit_bias.push_back({token, -kInfinity});
  }
  return params;
}

std::vector<int32_t> usable_eog(const SamplerModel& model) {
  std::vector<int32_t> eog;
  std::copy_if(model.eog.begin(), model.eog.end(), std::back_inserter(eog),
               [&](int32_t token) { return token >= 0 && token < model.n_vocab; });
  return eog;
}

std::optional<GrammarFilter> make_filter(const SamplerParams& params, const SamplerModel& model) {
  if (!params.grammar) return std::nullopt;
  return GrammarFilter(params.grammar, model.trie ? model.trie : make_token_trie(model), usable_eog(model));
}

bool changes_logits(SamplerStage stage) {
  return stage == SamplerStage::penalties || stage == SamplerStage::dry;
}

// Returns the stages that have an effect. Greedy choice drops stages that could remove the largest logit or
// are random, and, after the last stage that changes logits, those that only remove candidates.
std::vector<SamplerStage> stages_to_run(const SamplerParams& p, bool greedy, const Penalties& penalties,
                                        const Dry& dry) {
  using S = SamplerStage;
  const auto idle = [&](S stage) {
    switch (stage) {
      case S::penalties: return !penalties.active();
      case S::dry: return !dry.active();
      case S::top_n_sigma: return p.top_n_sigma <= 0;
      case S::top_k: return p.top_k <= 0;
      case S::typ_p: return p.typical_p >= 1 || greedy;
      case S::top_p: return p.top_p >= 1;
      case S::min_p: return p.min_p <= 0;
      case S::xtc: return p.xtc_probability <= 0 || greedy;
      case S::temperature: return greedy;
    }
    return false;
  };
  std::vector<S> stages;
  if (p.mirostat != 0) return stages;
  std::copy_if(p.stages.begin(), p.stages.end(), std::back_inserter(stages), std::not_fn(idle));
  while (greedy && !stages.empty() && !changes_logits(stages.back())) stages.pop_back();
  return stages;
}

}  // namespace

std::shared_ptr<const TokenTrie> make_token_trie(const SamplerModel& model) {
  return std::make_shared<const TokenTrie>(model.n_vocab, model.piece, usable_eog(model));
}

Sampler::Sampler(const SamplerParams& params, SamplerModel model)
    : params_(complete(params, model)),
      n_vocab_(model.n_vocab),
      greedy_(params_.temp <= 0),
      seed_(resolve_seed(params_.seed)),
      rng_(seed_),
      penalties_(params_, model.n_vocab, model.n_ctx),
      grammar_(make_filter(params_, model)),
      dry_(params_, model.n_vocab, model.n_ctx, std::move(model.piece)),
      mirostat_(params_, model.n_vocab) {
  stages_ = stages_to_run(params_, greedy_, penalties_, dry_);
}

void Sampler::accept_prompt(int32_t token) {
  remember(token);
  if (grammar_) grammar_->reset();
}

void Sampler::accept(int32_t token) {
  if (grammar_) grammar_->accept(token);
  remember(token);
}

void Sampler::remember(int32_t token) {
  TANDEM_CHECK(token >= 0 && token < n_vocab_);
  penalties_.accept(token);
  dry_.accept(token);
  ++n_accepted_;
}

int32_t Sampler::sample(std::span<const float> logits) {
  TANDEM_CHECK(logits.size() == static_cast<size_t>(n_vocab_));
  scan_.scan(logits, n_accepted_);
  if (!grammar_) return choose(logits);
  if (grammar_->is_finished()) return choose_end(logits);
  const Mirostat mirostat = mirostat_;  // to restore: the draw updates it
  const int32_t token = choose(logits);
  if (grammar_->allows(token)) return token;
  mirostat_ = mirostat;
  return choose_allowed(logits);
}

int32_t Sampler::sample(const TokenLogits& logits) {
  const size_t n = n_largest();
  if (n == 0 || logits.n_top() < n || !(logits.top_logit(0) < kInfinity) || logits.top_logit(0) == -kInfinity)
    return sample(logits.all());  // which knows what is wrong with them
  if (!grammar_) return choose_of_top(logits);
  if (grammar_->is_finished()) return choose_end(logits.all());
  const int32_t token = choose_of_top(logits);
  return grammar_->allows(token) ? token : choose_allowed(logits.all());
}

size_t Sampler::n_largest() const {
  if (!params_.logit_bias.empty()) return 0;
  if (greedy_ && stages_.empty()) return 1;
  return takes_top_k_first() && params_.top_k < n_vocab_ ? static_cast<size_t>(params_.top_k) : 0;
}

bool Sampler::takes_top_k_first() const {
  return params_.logit_bias.empty() && !stages_.empty() && stages_.front() == SamplerStage::top_k;
}

int32_t Sampler::choose_allowed(std::span<const float> logits) {
  allowed_logits_.assign(logits.begin(), logits.end());
  bool any = grammar_->apply(allowed_logits_);
  if (!any) {
    throw_error(ErrorCode::usage, "no token of the vocabulary continues the grammar's text after {} tokens",
                n_accepted_);
  }
  for (const LogitBias& b : params_.logit_bias) {
    if (b.bias == -kInfinity) allowed_logits_[b.token] = -kInfinity;
  }
  any = std::any_of(allowed_logits_.begin(), allowed_logits_.end(), [](float x) { return x > -kInfinity; });
  if (!any && grammar_->is_complete()) return choose_end(logits);
  if (!any) throw_error(ErrorCode::usage, "the logit biases ban every token that the grammar allows");
  scan_.scan(allowed_logits_, n_accepted_);
  return choose(allowed_logits_);
}

// Where the text must end, or cannot continue otherwise, the bias of ignore_eos does not apply.
int32_t Sampler::choose_end(std::span<const float> logits) const {
  const int32_t token = grammar_->best_end(logits);
  if (token < 0)
    throw_error(ErrorCode::usage,
                "the grammar's text is complete, but the vocabulary has no token to end it");
  return token;
}

int32_t Sampler::choose(std::span<const float> logits) {
  if (greedy_ && stages_.empty() && params_.logit_bias.empty()) return scan_.argmax();
  if (takes_top_k_first()) {
    candidates_.assign_largest(scan_, static_cast<size_t>(params_.top_k));
  } else {
    candidates_.assign(logits);
    apply_biases();
  }
  return choose_of_candidates();
}

int32_t Sampler::choose_of_top(const TokenLogits& logits) {
  if (greedy_ && stages_.empty()) return logits.top_id(0);
  candidates_.assign_top(logits, static_cast<size_t>(params_.top_k));
  return choose_of_candidates();
}

int32_t Sampler::choose_of_candidates() {
  if (grammar_) candidates_.keep_from(std::numeric_limits<float>::lowest());  // drop what it banned
  size_t chosen = 0;
  if (!greedy_ && params_.mirostat != 0) {
    temperature(candidates_, params_.temp);
    chosen = mirostat_.draw(candidates_, rng_);
  } else {
    for (const SamplerStage stage : stages_) apply(stage);
    chosen = greedy_ ? candidates_.best() : draw(candidates_, rng_);
  }
  return candidates_.items()[chosen].id;
}

void Sampler::apply(SamplerStage stage) {
  const SamplerParams& p = params_;
  switch (stage) {
    case SamplerStage::penalties: return penalties_.apply(candidates_);
    case SamplerStage::dry: return dry_.apply(candidates_);
    case SamplerStage::top_n_sigma: return top_n_sigma(candidates_, p.top_n_sigma);
    case SamplerStage::top_k: return top_k(candidates_, p.top_k);
    case SamplerStage::typ_p: return typical_p(candidates_, p.typical_p, p.min_keep);
    case SamplerStage::top_p: return top_p(candidates_, p.top_p, p.min_keep);
    case SamplerStage::min_p: return min_p(candidates_, p.min_p, p.min_keep);
    case SamplerStage::xtc: return xtc(candidates_, p.xtc_probability, p.xtc_threshold, p.min_keep, rng_);
    case SamplerStage::temperature: return apply_temperature();
  }
}

void Sampler::apply_temperature() {
  if (params_.dynatemp_range > 0) {
    dynamic_temperature(candidates_, params_.temp, params_.dynatemp_range, params_.dynatemp_exponent);
  } else {
    temperature(candidates_, params_.temp);
  }
}

void Sampler::apply_biases() {
  if (params_.logit_bias.empty()) return;
  auto items = candidates_.mutable_items();  // unsorted: the index is the id
  for (const LogitBias& b : params_.logit_bias) {
    float& logit = items[b.token].logit;
    const bool banned = logit == -kInfinity || b.bias == -kInfinity;  // -inf wins over +inf
    logit = banned ? -kInfinity : logit + b.bias;
  }
  candidates_.logits_changed();
  const float max = candidates_.max_logit();
  if (max == -kInfinity) throw_error(ErrorCode::usage, "the logit biases leave no token to choose");
  if (max == kInfinity) {  // keep only the tokens raised to infinity, with equal logits
    candidates_.keep_from(kInfinity);
    for (Candidate& c : candidates_.mutable_items()) c.logit = 0.0f;
  }
}

void Sampler::reset() {
  seed_ = resolve_seed(params_.seed);
  rng_ = Rng(seed_);
  penalties_.reset();
  dry_.reset();
  mirostat_.reset();
  if (grammar_) grammar_->reset();
  n_accepted_ = 0;
}

}  // namespace tandem
