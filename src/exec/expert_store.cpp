#include "exec/expert_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

size_t offset_in_page(const std::byte* address) {
  return reinterpret_cast<uintptr_t>(address) % kDiskAlignment;
}

// Of the experts that are used most, at the start and beside a step.
constexpr size_t kFirstReads = 64, kReadsBeside = 4;

// An expert's rows in the mapped file.
const std::byte* in_file(const Weight& matrix, int32_t expert) {
  return matrix.data + expert_bytes(matrix) * static_cast<size_t>(expert);
}

}  // namespace

ExpertStore::ExpertStore(Device& host, DiskReader* reader) : host_(host), reader_(reader) {}

ExpertStore::~ExpertStore() {
  forget();
  for (const Pool& pool : pools_) host_.free(pool.base);
}

void ExpertStore::reserve(ExpertRoom room) {
  if (!layers_.empty()) {
    for (const ExpertLayer& layer : room.layers) TANDEM_CHECK(has(*layer.down));
    return;
  }
  TANDEM_CHECK(room.layers.empty() || reader_ != nullptr);
  pools_.reserve(room.pools.size());
  for (const ExpertPool& planned : room.pools) {
    Pool pool{nullptr, planned.slot_bytes, std::vector<Slot>(planned.n_slots), 0,
              EvictionOrder(planned.n_slots)};
    pool.base = host_.alloc(planned.n_bytes());
    TANDEM_CHECK(offset_in_page(pool.base) == 0);  // the host gives whole pages
    for (size_t i = 0; i < pool.slots.size(); ++i) pool.slots[i].base = pool.base + i * planned.slot_bytes;
    pools_.push_back(std::move(pool));
  }
  layers_.resize(room.layers.size());
  for (size_t p = 0; p < pools_.size(); ++p) {
    for (const size_t layer : room.pools[p].layers) {
      layers_[layer] = {&pools_[p],
                        std::vector<int32_t>(static_cast<size_t>(room.layers[layer].n_expert), -1)};
    }
  }
  for (const ExpertLayer& layer : room.layers) {
    use_.counts[layer.layer].resize(static_cast<size_t>(layer.n_expert));
  }
  room_ = std::move(room);
}

size_t ExpertStore::layer_with(const Weight& down) const {
  const auto found = std::ranges::find(room_.layers, &down, &ExpertLayer::down);
  return static_cast<size_t>(found - room_.layers.begin());
}

ExpertStore::Slot& ExpertStore::slot_of(size_t layer, int32_t expert) {
  const Layer& l = layers_[layer];
  return l.pool->slots[static_cast<size_t>(l.slot_of[static_cast<size_t>(expert)])];
}

// Keeps what fn throws: ops cannot throw.
template <class Fn>
void ExpertStore::guarded(const Fn& fn) {
  if (failed()) return;
  try {
    fn();
  } catch (...) {
    error_ = std::current_exception();
  }
}

void ExpertStore::request(const ExpertRequest& request) {
  guarded([&] { begin(request); });
}

std::span<const ReadyExpert> ExpertStore::next() {
  guarded([&] { collect(); });
  if (failed()) ready_.clear();
  return ready_;
}

void ExpertStore::begin(const ExpertRequest& request) {
  release_returned();
  request_ = request;
  layer_ = layer_with(*request.down);
  passes_through_ = request.n_tokens > kFewTokens;
  waiting_.clear();
  pending_.clear();
  if (!was_told_) tell(layer_, request);
  was_told_ = false;
  Layer& layer = layers_[layer_];
  std::vector<uint64_t>& used = use_.counts[room_.layers[layer_].layer];
  for (size_t i = 0; i < request.experts.size(); ++i) {
    const int32_t expert = request.experts[i].expert;
    const int32_t at = layer.slot_of[static_cast<size_t>(expert)];
    used[static_cast<size_t>(expert)] += static_cast<uint64_t>(request.experts[i].n_tokens);
    ++counts_.n_used;
    if (at < 0) {
      waiting_.push_back(i);
      continue;
    }
    Slot& slot = layer.pool->slots[static_cast<size_t>(at)];
    if (slot.under_way && reader_->is_done(*slot.under_way) && !finish(slot)) {
      error_ = nullptr;  // it was read ahead, which may have failed long ago: it is read again
      waiting_.push_back(i);
      continue;
    }
    ++counts_.n_found;
    slot.in_use = true;
    counts_.n_ahead_used += slot.is_guess;
    slot.is_guess = false;
    if (!passes_through_) layer.pool->order.used(static_cast<size_t>(at));
    pending_.push_back(i);
  }
  end_reading_ahead();
  start_waiting();
  if (!passes_through_) predict();
  read_more_of_most_used(kReadsBeside);
}

void ExpertStore::collect() {
  release_returned();
  start_waiting();
  while (!waiting_.empty() && borrower_ && borrower_->give_back_one()) start_waiting();
  while (!waiting_.empty() && pending_.empty() && end_a_read()) start_waiting();
  collect_done();
  while (ready_.empty() && !pending_.empty() && !failed()) {
    finish(slot_of(layer_, request_.experts[pending_.front()].expert));
    collect_done();
  }
  TANDEM_CHECK(failed() || !ready_.empty() || waiting_.empty());
}

// Frees a slot that is read into for a start or a wrong guess, when the read has ended. False: there is none.
bool ExpertStore::end_a_read() {
  Pool& pool = *layers_[layer_].pool;
  const size_t at = pool.order.first([&](size_t s) {
    const Slot& slot = pool.slots[s];
    return slot.under_way && !slot.in_use && slot.n_loans == 0 && !slot.is_ahead;
  });
  if (at == pool.slots.size()) return false;
  discard(pool.slots[at]);
  return true;
}

void ExpertStore::release_returned() {
  for (const ReadyExpert& ready : ready_) {
    slot_of(layer_, request_.experts[ready.index].expert).in_use = false;
  }
  ready_.clear();
}

// For the current request, which has them in use now. Wrong guesses go first.
void ExpertStore::end_reading_ahead() {
  for (Slot* slot : ahead_) {
    slot->is_ahead = false;
    if (!slot->is_guess) continue;
    slot->is_guess = false;
    Pool& pool = *layers_[slot->layer].pool;
    pool.order.unwanted(static_cast<size_t>(slot - pool.slots.data()));
  }
  ahead_.clear();
}

// Each token's experts of the next layer. Those that rank higher are the likelier: guesses of the upper half cost few reads
// that nobody needs.
void ExpertStore::predict() {
  if (layer_ + 1 == layers_.size()) return;
  read_ahead(guess_after(layer_, request_, (room_.layers[layer_ + 1].n_used + 1) / 2));
}

// The n experts that each token is likeliest to choose in the layer behind this one; nothing if that cannot be told.
std::span<const int32_t> ExpertStore::guess_after(size_t layer, const ExpertRequest& request, int64_t n) {
  if (layer + 1 >= layers_.size() || !request.x || request.n_tokens > kFewTokens) return {};
  const ExpertLayer& next = room_.layers[layer + 1];
  if (!ExpertGuesser::can_guess(next.router, next.n_expert, request.n_cols)) return {};
  return guesser_.guess(next.router, request.x, request.n_tokens, n);
}

void ExpertStore::tell(size_t layer, const ExpertRequest& chosen) {
  if (!watcher_) return;
  const int64_t n_next = layer + 1 < layers_.size() ? room_.layers[layer + 1].n_used : 0;
  watcher_({room_.layers[layer].layer, chosen.experts, guess_after(layer, chosen, n_next)});
}

void ExpertStore::read_most_used(const ExpertUse& use) {
  struct Used {
    uint64_t n;
    Expert expert;
  };
  std::vector<Used> list;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto found = use.counts.find(room_.layers[i].layer);
    if (found == use.counts.end() || found->second.size() != layers_[i].slot_of.size()) continue;
    for (size_t e = 0; e < found->second.size(); ++e) {
      if (found->second[e] > 0) list.push_back({found->second[e], {i, static_cast<int32_t>(e)}});
    }
  }
  std::ranges::stable_sort(list, [](const Used& a, const Used& b) { return a.n < b.n; });
  most_used_.clear();
  for (const Used& used : list) most_used_.push_back(used.expert);
  read_more_of_most_used(kFirstReads);
}

// As long as there are slots that have had nothing yet, and few such reads are under way: those that a step waits for come
// behind them.
void ExpertStore::read_more_of_most_used(size_t n_under_way) {
  std::erase_if(warming_,
                [&](const Slot* slot) { return !slot->under_way || reader_->is_done(*slot->under_way); });
  while (!most_used_.empty() && warming_.size() < n_under_way) {
    const auto [layer, expert] = most_used_.back();
    most_used_.pop_back();
    Pool& pool = *layers_[layer].pool;
    const bool is_there =
        layers_[layer].slot_of[static_cast<size_t>(expert)] >= 0 || is_elsewhere(layer, expert);
    if (is_there || pool.n_filled == pool.slots.size() || !bring(layer, expert)) continue;
    Slot& slot = slot_of(layer, expert);
    pool.order.used(static_cast<size_t>(&slot - pool.slots.data()));
    warming_.push_back(&slot);
  }
}

void ExpertStore::start_waiting() {
  size_t n_started = 0;
  for (const size_t i : waiting_) {
    if (!bring(layer_, request_.experts[i].expert)) break;
    slot_of(layer_, request_.experts[i].expert).in_use = true;
    pending_.push_back(i);
    ++n_started;
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(n_started));
  if (waiting_.empty() && passes_through_) read_ahead();
}

// All of the next layer's experts.
void ExpertStore::read_ahead() {
  if (layer_ + 1 == layers_.size()) return;
  all_of_next_.resize(layers_[layer_ + 1].slot_of.size());
  std::iota(all_of_next_.begin(), all_of_next_.end(), 0);
  read_ahead(all_of_next_);
}

// Some of the next layer's experts, where there is room that nothing needs now.
void ExpertStore::read_ahead(std::span<const int32_t> experts) {
  const size_t next = layer_ + 1;
  const size_t n_most = layers_[next].pool->slots.size() / 2;
  for (const int32_t expert : experts.first(std::min(experts.size(), n_most))) {
    const bool is_new = layers_[next].slot_of[static_cast<size_t>(expert)] < 0;
    if (is_elsewhere(next, expert)) continue;
    if (is_new && !bring(next, expert)) return;
    Slot& slot = slot_of(next, expert);
    if (slot.is_ahead) continue;
    slot.is_ahead = true;
    slot.is_guess = is_new;
    counts_.n_ahead += is_new;
    ahead_.push_back(&slot);
  }
}

// Starts reading an expert into a slot that nothing needs. False if there is none.
bool ExpertStore::bring(size_t layer, int32_t expert) {
  Pool& pool = *layers_[layer].pool;
  const auto can_go = [&](size_t s) {
    const Slot& slot = pool.slots[s];
    return !slot.in_use && slot.n_loans == 0 && !slot.is_ahead &&
           (!slot.under_way || reader_->is_done(*slot.under_way));
  };
  const size_t at = pool.n_filled < pool.slots.size() ? pool.n_filled++ : pool.order.first(can_go);
  if (at == pool.slots.size()) return false;
  Slot& slot = pool.slots[at];
  discard(slot);
  slot.layer = layer;
  slot.expert = expert;
  layers_[layer].slot_of[static_cast<size_t>(expert)] = static_cast<int32_t>(at);
  if (passes_through_) {
    pool.order.unwanted(at);
  } else {
    pool.order.used(at);
  }
  try {
    start_reading(slot);
  } catch (...) {
    drop(slot);
    throw;
  }
  return true;
}

void ExpertStore::start_reading(Slot& slot) {
  reads_.clear();
  std::byte* to = slot.base;
  for (const Weight* matrix : room_.layers[slot.layer].matrices()) {
    const std::byte* from = in_file(*matrix, slot.expert);
    const size_t before = offset_in_page(from);
    const size_t n_bytes =
        (before + expert_bytes(*matrix) + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
    reads_.push_back({from - before, n_bytes, to});
    counts_.read_bytes += n_bytes;
    to += expert_page_bytes(*matrix);
  }
  ++counts_.n_read;
  slot.under_way = reader_->start(reads_);
}

void ExpertStore::collect_done() {
  std::erase_if(pending_, [&](size_t i) {
    if (failed()) return false;
    Slot& slot = slot_of(layer_, request_.experts[i].expert);
    if (slot.under_way && !reader_->is_done(*slot.under_way)) return false;
    if (!finish(slot)) return false;
    ready_.push_back(in_slot(slot));
    ready_.back().index = i;
    return true;
  });
}

// Where the matrices of an expert lie that is in its slot.
ReadyExpert ExpertStore::in_slot(const Slot& slot) const {
  const ExpertLayer& layer = room_.layers[slot.layer];
  ReadyExpert ready;
  const std::byte* at = slot.base;
  const auto next = [&](const Weight* matrix) -> const std::byte* {
    if (!matrix) return nullptr;
    const std::byte* rows = at + offset_in_page(in_file(*matrix, slot.expert));
    at += expert_page_bytes(*matrix);
    return rows;
  };
  ready.gate = next(layer.gate);
  ready.up = next(layer.up);
  ready.down = next(layer.down);
  return ready;
}

bool ExpertStore::is_elsewhere(size_t layer, int32_t expert) const {
  return borrower_ && borrower_->has(*room_.layers[layer].down, expert);
}

bool ExpertStore::has_slot(const Weight& down, int32_t expert) const {
  return layers_[layer_with(down)].slot_of[static_cast<size_t>(expert)] >= 0;
}

const std::byte* ExpertStore::rows_in(const ReadyExpert& lent, const Weight& down,
                                      const Weight& matrix) const {
  const ExpertLayer& layer = room_.layers[layer_with(down)];
  if (&matrix == layer.gate) return lent.gate;
  if (&matrix == layer.up) return lent.up;
  return &matrix == layer.down ? lent.down : nullptr;
}

bool ExpertStore::is_in_memory(const Weight& down, int32_t expert) {
  const size_t layer = layer_with(down);
  if (layers_[layer].slot_of[static_cast<size_t>(expert)] < 0) return false;
  Slot& slot = slot_of(layer, expert);
  if (!slot.under_way) return true;
  if (!reader_->is_done(*slot.under_way)) return false;
  const std::exception_ptr before = error_;
  const bool is_there = finish(slot);
  error_ = before;  // it was read ahead: it is read again if it is needed
  return is_there;
}

void ExpertStore::start(const Weight& down, int32_t expert) {
  const size_t layer = layer_with(down);
  if (layers_[layer].slot_of[static_cast<size_t>(expert)] < 0) bring(layer, expert);
}

std::optional<ReadyExpert> ExpertStore::lend(const Weight& down, int32_t expert) {
  const size_t layer = layer_with(down);
  if (layers_[layer].slot_of[static_cast<size_t>(expert)] < 0) return std::nullopt;
  Slot& slot = slot_of(layer, expert);
  if (!finish(slot)) std::rethrow_exception(std::exchange(error_, nullptr));
  ++slot.n_loans;
  return in_slot(slot);
}

void ExpertStore::take_back(const Weight& down, int32_t expert) {
  const size_t layer = layer_with(down);
  const int32_t at = layers_[layer].slot_of[static_cast<size_t>(expert)];
  TANDEM_CHECK(at >= 0);
  Pool& pool = *layers_[layer].pool;
  if (--pool.slots[static_cast<size_t>(at)].n_loans == 0) pool.order.unwanted(static_cast<size_t>(at));
}

void ExpertStore::tell_chosen(const ExpertRequest& all) {
  tell(layer_with(*all.down), all);
  was_told_ = true;
}

// Waits until the slot is complete. False after a failure, which is kept.
bool ExpertStore::finish(Slot& slot) {
  if (!slot.under_way) return true;
  const DiskReader::Ticket ticket = *slot.under_way;
  slot.under_way.reset();
  try {
    reader_->wait(ticket);
    return true;
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    drop(slot);
    return false;
  }
}

// Frees a slot that nothing needs, not even if its read has failed.
void ExpertStore::discard(Slot& slot) {
  const std::exception_ptr before = error_;
  finish(slot);
  error_ = before;
  drop(slot);
}

// The slot has no expert any more.
void ExpertStore::drop(Slot& slot) {
  if (slot.expert >= 0) layers_[slot.layer].slot_of[static_cast<size_t>(slot.expert)] = -1;
  slot.expert = -1;
}

void ExpertStore::check() const {
  if (error_) std::rethrow_exception(error_);
}

void ExpertStore::forget() {
  for (Pool& pool : pools_) {
    for (Slot& slot : pool.slots) {
      finish(slot);
      slot.in_use = slot.is_ahead = slot.is_guess = false;
      slot.n_loans = 0;
    }
  }
  ahead_.clear();
  warming_.clear();
  waiting_.clear();
  pending_.clear();
  ready_.clear();
  was_told_ = false;
  error_ = nullptr;
}

}  // namespace tandem
