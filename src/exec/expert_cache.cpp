#include "exec/expert_cache.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace tandem {
namespace {

constexpr double kHalfLife = 256;  // steps

// Of a weight of experts, or their biases, a single one.
Weight one_of(const Weight& whole, int64_t expert) {
  Weight one = whole;
  const bool is_bias = whole.n_mats == 1;
  (is_bias ? one.n_rows : one.n_mats) = 1;
  one.data += one.n_bytes() * static_cast<size_t>(expert);
  return one;
}

}  // namespace

void ExpertCache::add(std::span<const CachedLayer> layers, const Addresses& address) {
  for (const CachedLayer& in : layers) {
    const auto is_same = [&](const Layer& layer) { return layer.in.down == in.down; };
    if (std::ranges::any_of(layers_, is_same)) continue;
    Layer layer;
    layer.in = in;
    layer.device = devices_[in.device.index()];
    for (const CachedLayer::Slots& w : in.weights) layer.bases.push_back(address(in.device, *w.slots));
    layer.slots.resize(static_cast<size_t>(in.n_slots));
    layer.slot_of.assign(static_cast<size_t>(in.n_expert), -1);
    for (size_t s = 0; s < layer.slots.size(); ++s) {
      layer.slots[s].expert = static_cast<int32_t>(s);
      layer.slot_of[s] = static_cast<int32_t>(s);
    }
    layer.singles.resize(static_cast<size_t>(in.n_expert));
    layer.n_tokens.assign(static_cast<size_t>(in.n_expert), 0);
    layer.policy = std::make_unique<KeepsFrequent>(static_cast<size_t>(in.n_expert), kHalfLife);
    use_.counts[in.layer].resize(static_cast<size_t>(in.n_expert));
    layers_.push_back(std::move(layer));
  }
}

void ExpertCache::bring_most_used(const ExpertUse& use) {
  for (Layer& layer : layers_) {
    const auto found = use.counts.find(layer.in.layer);
    if (found == use.counts.end() || found->second.size() != layer.slot_of.size()) continue;
    std::vector<int32_t> order(layer.slot_of.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
      return found->second[static_cast<size_t>(a)] > found->second[static_cast<size_t>(b)];
    });
    // The policy knows them as if the recorded steps had just been, at most as many as it remembers.
    const uint64_t n_recorded = std::accumulate(found->second.begin(), found->second.end(), uint64_t{0});
    const double n_remembered = kHalfLife / std::log(2.0) * static_cast<double>(layer.in.n_used);
    const double weight = std::min(1.0, n_remembered / std::max(1.0, static_cast<double>(n_recorded)));
    for (size_t e = 0; e < found->second.size(); ++e) {
      layer.policy->used(e, std::llround(weight * static_cast<double>(found->second[e])));
    }
    order.resize(layer.slots.size());
    for (const int32_t expert : order) {  // those that are there stay
      if (const int32_t at = layer.slot_of[static_cast<size_t>(expert)]; at >= 0)
        layer.slots[static_cast<size_t>(at)].in_use = true;
    }
    const Event after = layer.device->record();
    auto free = layer.slots.begin();
    for (const int32_t expert : order) {
      if (layer.slot_of[static_cast<size_t>(expert)] >= 0) continue;
      free = std::find_if(free, layer.slots.end(), [](const Slot& s) { return !s.in_use; });
      fetch(layer, *free++, expert, after);
    }
    for (Slot& slot : layer.slots) slot.in_use = false;
  }
}

void ExpertCache::find(const Weight& down, std::span<const int32_t> experts, std::span<int32_t> slots) {
  TANDEM_CHECK(slots.size() == experts.size());
  std::ranges::fill(slots, -1);
  if (error_) return;
  try {
    find_in(layer_of(down), experts, slots);
  } catch (...) {
    error_ = std::current_exception();
    std::ranges::fill(slots, -1);
  }
}

ExpertCache::Layer& ExpertCache::layer_of(const Weight& down) {
  const auto found = std::ranges::find_if(layers_, [&](const Layer& l) { return l.in.down == &down; });
  TANDEM_CHECK(found != layers_.end());
  return *found;
}

void ExpertCache::find_in(Layer& layer, std::span<const int32_t> experts, std::span<int32_t> slots) {
  list_step(layer, experts);
  missing_.clear();
  for (const int32_t expert : chosen_) {
    const int32_t at = layer.slot_of[static_cast<size_t>(expert)];
    if (at < 0) {
      missing_.push_back(expert);
    } else {
      use_slot(layer, layer.slots[static_cast<size_t>(at)]);
    }
  }
  counts_.n_used += chosen_.size();
  counts_.n_found += chosen_.size() - missing_.size();
  // Those with the most tokens first: the host then has the least to compute.
  std::ranges::stable_sort(missing_, [&](int32_t a, int32_t b) {
    return layer.n_tokens[static_cast<size_t>(a)] > layer.n_tokens[static_cast<size_t>(b)];
  });
  const auto n_now = static_cast<size_t>(layer.in.fetched * static_cast<double>(missing_.size()));
  size_t i = 0;
  for (; i < n_now; ++i) {
    Slot* slot = bring(layer, missing_[i]);
    if (!slot) break;
    ++counts_.n_fetched;
    use_slot(layer, *slot);
  }
  layer.may_keep = std::min(1.0, layer.may_keep + layer.in.kept);
  if (i < missing_.size() && layer.may_keep >= 1 && bring(layer, missing_[i])) {
    ++counts_.n_kept;
    layer.may_keep -= 1;
  }
  for (size_t pair = 0; pair < experts.size(); ++pair) {
    const int32_t at = experts[pair] < 0 ? -1 : layer.slot_of[static_cast<size_t>(experts[pair])];
    if (at >= 0 && layer.slots[static_cast<size_t>(at)].in_use) slots[pair] = at;
  }
  for (Slot& slot : layer.slots) slot.in_use = false;
  for (const int32_t expert : chosen_) layer.n_tokens[static_cast<size_t>(expert)] = 0;
  layer.policy->end_step();
}

// Fills in chosen_, each expert once, and how many tokens have chosen it.
void ExpertCache::list_step(Layer& layer, std::span<const int32_t> experts) {
  chosen_.clear();
  for (const int32_t expert : experts) {
    if (expert >= 0 && layer.n_tokens[static_cast<size_t>(expert)]++ == 0) chosen_.push_back(expert);
  }
  std::vector<uint64_t>& used = use_.counts[layer.in.layer];
  for (const int32_t expert : chosen_) {
    const int64_t n_tokens = layer.n_tokens[static_cast<size_t>(expert)];
    layer.policy->used(static_cast<size_t>(expert), n_tokens);
    used[static_cast<size_t>(expert)] += static_cast<uint64_t>(n_tokens);
  }
}

// For the step: what the device is given next waits until the expert is there.
void ExpertCache::use_slot(Layer& layer, Slot& slot) {
  slot.in_use = true;
  if (!slot.under_way) return;
  layer.device->join(slot.fetched);
  slot.under_way = false;
}

// Replaces the expert with the lowest score by a missing one, unless that has a lower score. Null: it does not.
ExpertCache::Slot* ExpertCache::bring(Layer& layer, int32_t expert) {
  Slot* victim = nullptr;
  double lowest = INFINITY;
  for (Slot& slot : layer.slots) {
    if (slot.in_use) continue;
    const double score = slot.expert < 0 ? -1 : layer.policy->score(static_cast<size_t>(slot.expert));
    if (score >= lowest) continue;
    victim = &slot;
    lowest = score;
  }
  if (!victim || layer.policy->score(static_cast<size_t>(expert)) < lowest) return nullptr;
  fetch(layer, *victim, expert, layer.device->record());
  return victim;
}

void ExpertCache::fetch(Layer& layer, Slot& slot, int32_t expert, Event after) {
  if (slot.expert >= 0) layer.slot_of[static_cast<size_t>(slot.expert)] = -1;
  slot.expert = -1;
  const auto index = &slot - layer.slots.data();
  std::vector<Weight>& singles = layer.singles[static_cast<size_t>(expert)];
  if (singles.empty()) {
    for (const CachedLayer::Slots& w : layer.in.weights) singles.push_back(one_of(*w.whole, expert));
  }
  for (size_t i = 0; i < singles.size(); ++i) {
    const size_t n_bytes = layer.device->weight_bytes(singles[i]);
    const DevicePtr to = layer.bases[i] + static_cast<size_t>(index) * n_bytes;
    slot.fetched = layer.device->fetch(to, singles[i], after);
    counts_.fetched_bytes += n_bytes;
  }
  slot.under_way = true;
  slot.expert = expert;
  layer.slot_of[static_cast<size_t>(expert)] = static_cast<int32_t>(index);
}

void ExpertCache::check() const {
  if (error_) std::rethrow_exception(error_);
}

void ExpertCache::forget() {
  for (Layer& layer : layers_) {
    for (Slot& slot : layer.slots) {
      slot.expert = -1;
      slot.in_use = slot.under_way = false;
    }
    std::ranges::fill(layer.slot_of, -1);
    std::ranges::fill(layer.n_tokens, 0);
  }
  error_ = nullptr;
}

}  // namespace tandem
