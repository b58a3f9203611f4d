#include "sample/grammar/states.h"

#include <functional>

namespace tandem {

GrammarStates::GrammarStates(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), n_classes_(grammar_->n_byte_classes()) {
  transitions_.assign(n_classes_, kDead);  // the dead state is the empty set
  seen_.resize(256);
  seen_in_.assign(256, 0);
  callers_.resize(grammar_->rules().size());
}

uint32_t GrammarStates::start() {
  const uint64_t bottom[] = {kBottom};
  const uint32_t stack = stacks_.intern(bottom);
  ++transition_number_;
  n_seen_ = 0;
  add(item(grammar_->rules()[grammar_->root()].entry, stack));
  return finish_state();
}

uint32_t GrammarStates::compute_transition(uint32_t state, uint8_t byte) {
  ++transition_number_;
  n_seen_ = 0;
  for (const uint64_t from : sets_[state]) {
    if (from == kBottom) break;
    for (const Grammar::Edge& edge : grammar_->edges(rule_state(from))) {
      if (edge.kind == Grammar::EdgeKind::byte && edge.low <= byte && byte <= edge.high)
        add(item(edge.target, stack(from)));
    }
  }
  const uint32_t next = finish_state();
  transitions_[state * size_t{n_classes_} + grammar_->byte_class(byte)] = next;
  return next;
}

// Queues an item, unless this transition has seen it already.
void GrammarStates::add(uint64_t added) {
  if (2 * n_seen_ >= seen_.size()) {
    std::vector<uint64_t> old(4 * seen_.size());
    std::vector<uint32_t> old_in(4 * seen_.size(), 0);
    old.swap(seen_);
    old_in.swap(seen_in_);
    n_seen_ = 0;
    const std::vector<uint64_t> todo = todo_;
    for (size_t i = 0; i < old.size(); ++i) {
      if (old_in[i] == transition_number_) add(old[i]);
    }
    todo_ = todo;
  }
  size_t bucket = (added * 0x9e3779b97f4a7c15u >> 20) & (seen_.size() - 1);
  while (seen_in_[bucket] == transition_number_) {
    if (seen_[bucket] == added) return;
    bucket = (bucket + 1) & (seen_.size() - 1);
  }
  seen_[bucket] = added;
  seen_in_[bucket] = transition_number_;
  ++n_seen_;
  todo_.push_back(added);
}

uint32_t GrammarStates::finish_state() {
  result_.clear();
  follow(Returns::allowed);
  enter_rules();
  std::sort(result_.begin(), result_.end());
  result_.erase(std::unique(result_.begin(), result_.end()), result_.end());
  const uint32_t id = sets_.intern(result_);
  transitions_.resize(sets_.size() * n_classes_, kUnknown);
  return id;
}

void GrammarStates::follow(Returns returns) {
  while (!todo_.empty()) {
    const uint64_t next = todo_.back();
    todo_.pop_back();
    visit(next, returns);
  }
}

void GrammarStates::visit(uint64_t visited, Returns returns) {
  const uint32_t state = rule_state(visited), below = stack(visited);
  const Grammar::State& info = grammar_->states()[state];
  if (info.reads) result_.push_back(visited);
  for (const Grammar::Edge& edge : grammar_->edges(state)) {
    switch (edge.kind) {
      case Grammar::EdgeKind::byte: break;
      case Grammar::EdgeKind::nothing: add(item(edge.target, below)); break;
      case Grammar::EdgeKind::call:
        if (grammar_->rules()[edge.rule].is_nullable) add(item(edge.target, below));
        call(edge, below);
        break;
      case Grammar::EdgeKind::call_nonempty: call(edge, below); break;
    }
  }
  if (!info.is_final || returns == Returns::done) return;
  for (const uint64_t back : stacks_[below]) {
    if (back == kBottom) {
      result_.push_back(kBottom);
    } else {
      add(back);
    }
  }
}

// A rule is entered only once all of its callers here are known.
void GrammarStates::call(const Grammar::Edge& edge, uint32_t below) {
  std::vector<uint64_t>& callers = callers_[edge.rule];
  if (callers.empty()) {
    called_.push_back(uint64_t{grammar_->rules()[edge.rule].rank} << 32 | edge.rule);
    std::push_heap(called_.begin(), called_.end(), std::greater<>());
  }
  if (grammar_->states()[edge.target].only_final) {
    const auto back = stacks_[below];
    callers.insert(callers.end(), back.begin(), back.end());
  } else {
    callers.push_back(item(edge.target, below));
  }
}

// In rank order, so that no caller is added after its rule was entered.
void GrammarStates::enter_rules() {
  while (!called_.empty()) {
    std::pop_heap(called_.begin(), called_.end(), std::greater<>());
    const auto rule = static_cast<uint32_t>(called_.back());
    called_.pop_back();
    std::vector<uint64_t>& callers = callers_[rule];
    std::sort(callers.begin(), callers.end());
    callers.erase(std::unique(callers.begin(), callers.end()), callers.end());
    const uint32_t stack = stacks_.intern(callers);
    callers.clear();
    add(item(grammar_->rules()[rule].entry, stack));
    follow(Returns::done);
  }
}

bool GrammarStates::forget_if_large(std::span<uint32_t> keep, size_t limit_bytes) {
  if (sets_.n_bytes() + stacks_.n_bytes() + transitions_.size() * sizeof transitions_[0] < limit_bytes)
    return false;
  ListPool old_sets, old_stacks;
  std::swap(old_sets, sets_);
  std::swap(old_stacks, stacks_);
  std::vector<uint32_t> new_stack(old_stacks.size(), kUnknown);
  transitions_.assign(n_classes_, kDead);
  transitions_.shrink_to_fit();
  for (uint32_t& state : keep) state = keep_state(state, old_sets, old_stacks, new_stack);
  return true;
}

// Stack nodes refer only to older nodes, which have smaller numbers.
uint32_t GrammarStates::keep_state(uint32_t id, const ListPool& old_sets, const ListPool& old_stacks,
                                   std::vector<uint32_t>& new_stack) {
  std::vector<uint32_t> needed;
  std::vector<uint64_t> list;
  const auto need_below = [&](std::span<const uint64_t> items) {
    bool all_known = true;
    for (const uint64_t i : items) {
      if (i == kBottom || new_stack[stack(i)] != kUnknown) continue;
      needed.push_back(stack(i));
      all_known = false;
    }
    return all_known;
  };
  const auto renumber = [&](std::span<const uint64_t> items) {
    list.assign(items.begin(), items.end());
    for (uint64_t& i : list) {
      if (i != kBottom) i = item(rule_state(i), new_stack[stack(i)]);
    }
    std::sort(list.begin(), list.end());
  };
  need_below(old_sets[id]);
  while (!needed.empty()) {
    const uint32_t node = needed.back();
    if (new_stack[node] == kUnknown) {
      if (!need_below(old_stacks[node])) continue;
      renumber(old_stacks[node]);
      new_stack[node] = stacks_.intern(list);
    }
    needed.pop_back();
  }
  renumber(old_sets[id]);
  const uint32_t kept = sets_.intern(list);
  transitions_.resize(sets_.size() * n_classes_, kUnknown);
  return kept;
}

}  // namespace tandem
