#include "exec/expert_cache.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

// Of a weight of experts, or their biases, a single one.
Weight one_of(const Weight& whole, int64_t expert) {
  Weight one = whole;
  const bool is_bias = whole.n_mats == 1;
  (is_bias ? one.n_rows : one.n_mats) = 1;
  one.data += one.n_bytes() * static_cast<size_t>(expert);
  return one;
}

}  // namespace

ExpertCache::ExpertCache(std::span<Device* const> devices, ExpertStore& store, MakeCachePolicy policy)
    : devices_(devices.begin(), devices.end()),
      store_(store),
      make_policy_(std::move(policy)),
      loans_(store) {}

ExpertCache::~ExpertCache() {
  loans_.end_all();
  store_.set_borrower(nullptr);
}

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
    for (size_t s = 0; s < layer.slots.size() && !in.on_disk; ++s) {
      layer.slots[s].expert = static_cast<int32_t>(s);
      layer.slot_of[s] = static_cast<int32_t>(s);
    }
    layer.singles.resize(static_cast<size_t>(in.n_expert));
    layer.n_tokens.assign(static_cast<size_t>(in.n_expert), 0);
    layer.policy = make_policy_(static_cast<size_t>(in.n_expert));
    use_.counts[in.layer].resize(static_cast<size_t>(in.n_expert));
    if (in.on_disk) store_.set_borrower(this);
    layers_.push_back(std::move(layer));
  }
}

void ExpertCache::bring_most_used(const ExpertUse& use) {
  std::vector<int32_t> order;
  for (Layer& layer : layers_) {
    const auto found = use.counts.find(layer.in.layer);
    if (found == use.counts.end() || found->second.size() != layer.slot_of.size()) continue;
    order_by_use(layer, found->second, order);
    fill(layer, order);
  }
}

// All experts, those used most first. The policy knows them as if the recorded steps had just been, at most as many as it
// remembers.
void ExpertCache::order_by_use(Layer& layer, const std::vector<uint64_t>& counts,
                               std::vector<int32_t>& order) const {
  order.resize(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return counts[static_cast<size_t>(a)] > counts[static_cast<size_t>(b)];
  });
  const uint64_t n_recorded = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  const double n_remembered = KeepsFrequent::kHalfLife / std::log(2.0) * static_cast<double>(layer.in.n_used);
  const double weight = std::min(1.0, n_remembered / std::max(1.0, static_cast<double>(n_recorded)));
  for (size_t e = 0; e < counts.size(); ++e) {
    layer.policy->used(e, std::llround(weight * static_cast<double>(counts[e])));
  }
}

// Reads the first of these, and starts reading some of the others. Most of the store's slots are for others: what is on loan
// and what is read ahead are at most half and a quarter of them. False: there is no room.
bool ExpertCache::read_for_fill(const Weight& down, std::span<const int32_t> experts) {
  constexpr size_t kAhead = 16;
  const size_t n_slots = store_.n_slots(down), n_ahead = std::clamp<size_t>(n_slots / 4, 1, kAhead);
  while (loans_.size() > n_slots / 2) loans_.end_one();
  for (const int32_t expert : experts.first(std::min(n_ahead, experts.size()))) store_.start(down, expert);
  while (!store_.has_slot(down, experts.front()) && loans_.end_one()) store_.start(down, experts.front());
  return store_.has_slot(down, experts.front());
}

// With the first of these.
void ExpertCache::fill(Layer& layer, std::span<const int32_t> experts) {
  experts = experts.first(layer.slots.size());
  std::vector<int32_t> missing;
  for (const int32_t expert : experts) {  // those that are there stay
    if (const int32_t at = layer.slot_of[static_cast<size_t>(expert)]; at >= 0) {
      layer.slots[static_cast<size_t>(at)].in_use = true;
    } else {
      missing.push_back(expert);
    }
  }
  const Event after = layer.device->record();
  auto free = layer.slots.begin();
  for (size_t i = 0; i < missing.size(); ++i) {
    if (layer.in.on_disk && !read_for_fill(*layer.in.down, std::span(missing).subspan(i))) break;
    free = std::find_if(free, layer.slots.end(), [](const Slot& s) { return !s.in_use; });
    fetch(layer, *free++, missing[i], after);
  }
  for (Slot& slot : layer.slots) slot.in_use = false;
}

void ExpertCache::find(const SlotRequest& request, std::span<int32_t> slots) {
  TANDEM_CHECK(slots.size() == request.experts.size());
  std::ranges::fill(slots, -1);
  if (error_) return;
  try {
    find_in(index_of(*request.down), request, slots);
  } catch (...) {
    error_ = std::current_exception();
    std::ranges::fill(slots, -1);
  }
}

size_t ExpertCache::index_of(const Weight& down) const {
  const auto found = std::ranges::find_if(layers_, [&](const Layer& l) { return l.in.down == &down; });
  return static_cast<size_t>(found - layers_.begin());
}

bool ExpertCache::has(const Weight& down, int32_t expert) const {
  const size_t index = index_of(down);
  return index < layers_.size() && layers_[index].slot_of[static_cast<size_t>(expert)] >= 0;
}

void ExpertCache::find_in(size_t index, const SlotRequest& request, std::span<int32_t> slots) {
  TANDEM_CHECK(index < layers_.size());
  Layer& layer = layers_[index];
  loans_.end_joined();
  loans_.join_aged(*layer.in.down);  // brought a step ago
  list_step(index, request);
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
  bring_for_step(layer);
  bring_wanted();
  bring_for_later(index);
  loans_.age(*layer.in.down);
  fill_in(layer, request.experts, slots);
  for (Slot& slot : layer.slots) slot.in_use = false;
  layer.policy->end_step();
  look_ahead(index + 1, request);
}

// Fills in chosen_, each expert once, and how many tokens have chosen it.
void ExpertCache::list_step(size_t index, const SlotRequest& request) {
  Layer& layer = layers_[index];
  chosen_.clear();
  told_.clear();
  for (const int32_t expert : request.experts) {
    if (expert >= 0 && layer.n_tokens[static_cast<size_t>(expert)]++ == 0) chosen_.push_back(expert);
  }
  for (const int32_t expert : chosen_) {
    const int64_t n_tokens = layer.n_tokens[static_cast<size_t>(expert)];
    layer.policy->used(static_cast<size_t>(expert), n_tokens);
    told_.push_back({expert, static_cast<int32_t>(n_tokens)});
  }
  tell_chosen(index, request);
}

void ExpertCache::tell_chosen(size_t index, const SlotRequest& request) {
  const CachedLayer& layer = layers_[index].in;
  if (layer.on_disk) {
    store_.tell_chosen({layer.down, told_, request.x, request.n_tokens, request.n_cols});
  } else if (watcher_) {
    watcher_({layer.layer, told_, guess(index + 1, request)});
  }
}

// The experts of a layer that tokens are likely to choose, told by the input of the one before; nothing if that cannot be told.
std::span<const int32_t> ExpertCache::guess(size_t index, const SlotRequest& request) {
  if (index >= layers_.size() || !request.x || request.n_tokens > kFewTokens) return {};
  const CachedLayer& layer = layers_[index].in;
  if (!ExpertGuesser::can_guess(layer.router, layer.n_expert, request.n_cols)) return {};
  return guesser_.guess(layer.router, request.x, request.n_tokens, layer.n_used);
}

// Brings a share of those that are missing, those with the most tokens first: the host then has the least to compute.
void ExpertCache::bring_for_step(Layer& layer) {
  std::ranges::stable_sort(missing_, [&](int32_t a, int32_t b) {
    return layer.n_tokens[static_cast<size_t>(a)] > layer.n_tokens[static_cast<size_t>(b)];
  });
  const auto at_hand = std::ranges::count_if(missing_, [&](int32_t e) { return is_at_hand(layer, e); });
  auto n_now = static_cast<size_t>(layer.in.fetched * static_cast<double>(at_hand));
  for (auto it = missing_.begin(); it != missing_.end() && n_now > 0;) {
    if (!is_at_hand(layer, *it)) {
      ++it;
      continue;
    }
    Slot* slot = bring(layer, *it);
    if (!slot) return;
    --n_now;
    ++counts_.n_fetched;
    use_slot(layer, *slot);
    it = missing_.erase(it);
  }
}

// Brings that of those missing which the policy likes best, now or when the step has read it.
void ExpertCache::bring_for_later(size_t index) {
  Layer& layer = layers_[index];
  if (!std::exchange(layer.has_guesses, false)) gain(layer);
  if (missing_.empty() || layer.may_keep < 1) return;
  const int32_t best = *std::ranges::max_element(
      missing_, {}, [&](int32_t e) { return layer.policy->score(static_cast<size_t>(e)); });
  if (!is_at_hand(layer, best)) {
    wanted_.push_back({index, best});
  } else if (bring(layer, best)) {
    ++counts_.n_kept;
    layer.may_keep -= 1;
  }
}

// What the bus can carry beside a step.
void ExpertCache::gain(Layer& layer) {
  layer.may_keep = std::min(1.0, layer.may_keep + layer.in.kept);
}

// What was read since. What was not, because the store had no room to keep it, is not waited for.
void ExpertCache::bring_wanted() {
  for (const Wanted& wanted : wanted_) {
    Layer& layer = layers_[wanted.layer];
    const bool is_there = layer.slot_of[static_cast<size_t>(wanted.expert)] >= 0;
    if (is_there || !is_at_hand(layer, wanted.expert) || !bring(layer, wanted.expert)) continue;
    ++counts_.n_kept;
    layer.may_keep -= 1;
  }
  wanted_.clear();
}

// Tells the policy of the next layer what its tokens are likely to choose, and brings as much of that as the bus may carry.
void ExpertCache::look_ahead(size_t index, const SlotRequest& request) {
  if (index == layers_.size() || !layers_[index].policy->looks_ahead()) return;
  const std::span<const int32_t> guesses = guess(index, request);
  if (guesses.empty()) return;
  Layer& layer = layers_[index];
  layer.policy->expect(guesses);
  layer.has_guesses = true;
  gain(layer);
  for (const int32_t expert : guesses) {
    if (layer.may_keep < 1) return;
    if (layer.slot_of[static_cast<size_t>(expert)] >= 0 || !is_at_hand(layer, expert)) continue;
    if (!bring(layer, expert)) return;
    ++counts_.n_kept;
    layer.may_keep -= 1;
  }
}

void ExpertCache::fill_in(Layer& layer, std::span<const int32_t> experts, std::span<int32_t> slots) {
  for (size_t pair = 0; pair < experts.size(); ++pair) {
    const int32_t at = experts[pair] < 0 ? -1 : layer.slot_of[static_cast<size_t>(experts[pair])];
    if (at >= 0 && layer.slots[static_cast<size_t>(at)].in_use) slots[pair] = at;
  }
  std::vector<uint64_t>& used = use_.counts[layer.in.layer];
  for (const int32_t expert : chosen_) {
    int64_t& n_tokens = layer.n_tokens[static_cast<size_t>(expert)];
    const int32_t at = layer.slot_of[static_cast<size_t>(expert)];
    const bool is_used_here = at >= 0 && layer.slots[static_cast<size_t>(at)].in_use;
    // The store counts the others.
    if (is_used_here || !layer.in.on_disk)
      used[static_cast<size_t>(expert)] += static_cast<uint64_t>(n_tokens);
    n_tokens = 0;
  }
}

// For the step: what the device is given next waits until the expert is there.
void ExpertCache::use_slot(Layer& layer, Slot& slot) {
  slot.in_use = true;
  if (!slot.under_way) return;
  layer.device->join(slot.fetched);
  if (layer.in.on_disk) loans_.joined(*layer.device, slot.fetched);
  slot.under_way = false;
}

// Whether the expert can be brought now.
bool ExpertCache::is_at_hand(const Layer& layer, int32_t expert) {
  return !layer.in.on_disk || store_.is_in_memory(*layer.in.down, expert);
}

// Replaces the expert with the lowest score by one that is missing, unless that has a lower score. Null: it does not.
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
  if (layer.in.on_disk) {
    const ReadyExpert ready = loans_.lend(*layer.device, *layer.in.down, expert);
    for (size_t i = 0; i < singles.size(); ++i) {
      const std::byte* rows = store_.rows_in(ready, *layer.in.down, *layer.in.weights[i].whole);
      if (rows) singles[i].data = rows;  // not of a bias
    }
  }
  for (size_t i = 0; i < singles.size(); ++i) {
    const size_t n_bytes = layer.device->weight_bytes(singles[i]);
    const DevicePtr to = layer.bases[i] + static_cast<size_t>(index) * n_bytes;
    if (pinned_ && !layer.in.on_disk)
      pinned_->fetching(*layer.device, *layer.in.weights[i].whole, singles[i].n_bytes());
    slot.fetched = layer.device->fetch(to, singles[i], after);
    if (layer.in.on_disk) loans_.fetches(slot.fetched);
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
  loans_.end_all();
  wanted_.clear();
  for (Layer& layer : layers_) {
    for (Slot& slot : layer.slots) {
      slot.expert = -1;
      slot.in_use = slot.under_way = false;
    }
    std::ranges::fill(layer.slot_of, -1);
    std::ranges::fill(layer.n_tokens, 0);
    layer.has_guesses = false;
  }
  error_ = nullptr;
}

}  // namespace tandem
