#include "sample/grammar/filter.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kMaxMasks = 1024;  // 16 MiB for 128k tokens

}  // namespace

GrammarFilter::GrammarFilter(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                             std::vector<int32_t> eog)
    : states_(std::move(grammar)), trie_(std::move(trie)), eog_(std::move(eog)), walk_(trie_->depth() + 2) {
  start_ = state_ = states_.start();
}

bool GrammarFilter::is_end(int32_t token) const {
  return std::find(eog_.begin(), eog_.end(), token) != eog_.end();
}

uint32_t GrammarFilter::state_after(int32_t token) {
  uint32_t state = state_;
  for (const char c : trie_->text(token)) {
    state = states_.advance(state, static_cast<uint8_t>(c));
    if (state == GrammarStates::kDead) break;
  }
  return state;
}

bool GrammarFilter::allows(int32_t token) {
  if (is_end(token)) return ended_ || is_complete();
  return !ended_ && !trie_->text(token).empty() && state_after(token) != GrammarStates::kDead;
}

void GrammarFilter::accept(int32_t token) {
  if (!allows(token)) {
    throw_error(ErrorCode::usage, "token {} was chosen, but the grammar does not allow it here", token);
  }
  if (is_end(token)) {
    ended_ = true;
    return;
  }
  state_ = state_after(token);
  forget_if_large({});
}

void GrammarFilter::reset() {
  state_ = start_;
  ended_ = false;
}

// Also keeps the states of a walk in progress.
void GrammarFilter::forget_if_large(std::span<uint32_t> also_keep) {
  std::vector<uint32_t> keep = {start_, state_};
  keep.insert(keep.end(), also_keep.begin(), also_keep.end());
  if (!states_.forget_if_large(keep)) return;
  masks_.clear();
  start_ = keep[0];
  state_ = keep[1];
  std::copy(keep.begin() + 2, keep.end(), also_keep.begin());
}

const GrammarFilter::Mask& GrammarFilter::mask() {
  const auto known = masks_.find(state_);
  if (known != masks_.end()) return known->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  Mask mask(static_cast<size_t>(trie_->n_vocab() + 63) / 64);
  const auto nodes = trie_->nodes();
  walk_[0] = state_;
  size_t n_states = states_.n_states();
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const uint32_t state = states_.advance(walk_[node.depth - 1], node.byte);
    if (state == GrammarStates::kDead) {
      i = node.end;
      continue;
    }
    walk_[node.depth] = state;
    if (node.token >= 0) mask[static_cast<size_t>(node.token) / 64] |= uint64_t{1} << (node.token % 64);
    ++i;
    if (states_.n_states() - n_states >= 1024) {  // many new states: check the memory limit
      forget_if_large(std::span(walk_).first(node.depth + size_t{1}));
      n_states = states_.n_states();
    }
  }
  if (is_complete()) {
    for (const int32_t token : eog_) mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
  }
  return masks_.insert_or_assign(state_, std::move(mask)).first->second;
}

bool GrammarFilter::apply(std::span<float> logits) {
  bool any = false;
  if (ended_) {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!is_end(static_cast<int32_t>(i))) logits[i] = -kInfinity;
      any |= logits[i] > -kInfinity;
    }
    return any;
  }
  const Mask& allowed = mask();
  for (size_t word = 0; word < allowed.size(); ++word) {
    const size_t first = word * 64, n = std::min<size_t>(64, logits.size() - first);
    if (allowed[word] == 0) {
      std::fill_n(logits.begin() + first, n, -kInfinity);
      continue;
    }
    for (size_t i = 0; i < n; ++i) {
      if ((allowed[word] >> i & 1) == 0) logits[first + i] = -kInfinity;
      any |= logits[first + i] > -kInfinity;
    }
  }
  return any;
}

int32_t GrammarFilter::best_end(std::span<const float> logits) const {
  int32_t best = -1;
  for (const int32_t token : eog_) {
    if (best < 0 || logits[token] > logits[best]) best = token;
  }
  return best;
}

}  // namespace tandem
