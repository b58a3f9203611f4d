#include "sample/grammar/compiler.h"

#include <algorithm>
#include <map>

namespace tandem {
namespace {

using Edge = Grammar::Edge;
using EdgeKind = Grammar::EdgeKind;

bool is_call(const Edge& edge) {
  return edge.kind == EdgeKind::call || edge.kind == EdgeKind::call_nonempty;
}

}  // namespace

uint32_t GrammarCompiler::new_state() {
  if (edges_.size() >= GrammarLimits::kStates) {
    grammar_error(source_, syntax_.rules[infos_[current_rule_].owner].at,
                  format("the grammar needs more than {} states", GrammarLimits::kStates));
  }
  edges_.emplace_back();
  is_final_.push_back(false);
  rule_of_.push_back(current_rule_);
  return static_cast<uint32_t>(edges_.size() - 1);
}

uint32_t GrammarCompiler::new_rule(bool is_repetition) {
  rules_.push_back({});
  infos_.push_back({infos_[current_rule_].owner, is_repetition});
  return static_cast<uint32_t>(rules_.size() - 1);
}

void GrammarCompiler::add_edge(uint32_t from, Edge edge) {
  edges_[from].push_back(edge);
}

void GrammarCompiler::emit_rules() {
  for (uint32_t i = 0; i < syntax_.rules.size(); ++i) {
    rules_.push_back({});
    infos_.push_back({i, false});
  }
  for (uint32_t i = 0; i < syntax_.rules.size(); ++i) {
    current_rule_ = i;
    const uint32_t entry = new_state();
    rules_[i].entry = entry;
    is_final_[emit(syntax_.nodes[syntax_.rules[i].body], entry)] = true;
  }
}

uint32_t GrammarCompiler::emit(const SyntaxNode& node, uint32_t from) {
  using Kind = SyntaxNode::Kind;
  switch (node.kind) {
    case Kind::literal: return emit_literal(node.literal, from);
    case Kind::characters: return emit_characters(node.ranges, from);
    case Kind::rule: {
      const uint32_t to = new_state();
      add_edge(from, {to, node.rule, EdgeKind::call, 0, 0});
      return to;
    }
    case Kind::sequence:
      for (const uint32_t child : node.children) from = emit(syntax_.nodes[child], from);
      return from;
    case Kind::choice: return emit_choice(node, from);
    case Kind::repeat: return emit_repeat(node, from);
  }
  return from;
}

uint32_t GrammarCompiler::emit_literal(const std::string& bytes, uint32_t from) {
  for (const char c : bytes) {
    const uint32_t to = new_state();
    add_edge(from, {to, 0, EdgeKind::byte, static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
    from = to;
  }
  return from;
}

// Sequences with a common end share the states of that end.
uint32_t GrammarCompiler::emit_characters(const std::vector<CodeRange>& ranges, uint32_t from) {
  const uint32_t to = new_state();
  std::map<std::vector<uint8_t>, uint32_t> state_before;  // key: the ranges of the remaining bytes
  for (const ByteSequence& sequence : utf8_sequences(ranges)) {
    uint32_t target = to;
    std::vector<uint8_t> rest;
    for (size_t i = sequence.n_bytes - 1; i > 0; --i) {
      const ByteRange range = sequence.bytes[i];
      rest.insert(rest.end(), {range.low, range.high});
      auto found = state_before.find(rest);
      if (found == state_before.end()) {
        const uint32_t state = new_state();
        add_edge(state, {target, 0, EdgeKind::byte, range.low, range.high});
        found = state_before.emplace(rest, state).first;
      }
      target = found->second;
    }
    add_edge(from, {target, 0, EdgeKind::byte, sequence.bytes[0].low, sequence.bytes[0].high});
  }
  return to;
}

uint32_t GrammarCompiler::emit_choice(const SyntaxNode& node, uint32_t from) {
  const uint32_t join = new_state();
  for (const uint32_t child : node.children) add_nothing(emit(syntax_.nodes[child], from), join);
  return join;
}

uint32_t GrammarCompiler::emit_repeat(const SyntaxNode& node, uint32_t from) {
  const SyntaxNode& body = syntax_.nodes[node.children[0]];
  if (node.max == 0) return from;
  if (node.max == kNoLimit && node.min <= 1) {  // * and +: a loop
    const uint32_t start = new_state();
    add_nothing(from, start);
    const uint32_t end = emit(body, start);
    if (end != start) add_nothing(end, start);
    return node.min == 0 ? start : end;
  }
  if (node.max == 1) {
    const uint32_t end = emit(body, from);
    const uint32_t join = new_state();
    add_nothing(end, join);
    if (node.min == 0) add_nothing(from, join);
    return join;
  }
  const uint32_t caller = current_rule_;
  const uint32_t rule = new_rule(true);
  emit_counted_rule(rule, node);
  current_rule_ = caller;
  const uint32_t to = new_state();
  add_edge(from, {to, rule, EdgeKind::call, 0, 0});
  return to;
}

// State i has read i repetitions. The last one loops if there is no upper bound.
void GrammarCompiler::emit_counted_rule(uint32_t rule, const SyntaxNode& node) {
  const uint32_t body = new_rule(false);
  current_rule_ = body;
  const uint32_t body_entry = new_state();
  rules_[body].entry = body_entry;
  is_final_[emit(syntax_.nodes[node.children[0]], body_entry)] = true;

  current_rule_ = rule;
  uint32_t state = new_state();
  rules_[rule].entry = state;
  const uint32_t n_calls = node.max == kNoLimit ? node.min : node.max;
  for (uint32_t i = 0; i < n_calls; ++i) {
    if (i >= node.min) is_final_[state] = true;
    const uint32_t next = new_state();
    add_edge(state, {next, body, EdgeKind::call, 0, 0});
    state = next;
  }
  is_final_[state] = true;
  if (node.max == kNoLimit) add_edge(state, {state, body, EdgeKind::call, 0, 0});
}

// A rule is nullable when its end is reachable from its entry through edges that read nothing. Visits each
// state once; states that depend on a rule being nullable wait with that rule.
void GrammarCompiler::find_nullable() {
  at_start_.assign(edges_.size(), false);
  std::vector<std::vector<uint32_t>> waiting(rules_.size());
  std::vector<uint32_t> todo;
  const auto reach = [&](uint32_t state) {
    if (at_start_[state]) return;
    at_start_[state] = true;
    todo.push_back(state);
  };
  for (const Grammar::Rule& rule : rules_) reach(rule.entry);
  while (!todo.empty()) {
    const uint32_t state = todo.back();
    todo.pop_back();
    for (const Edge& edge : edges_[state]) {
      if (edge.kind == EdgeKind::nothing) {
        reach(edge.target);
      } else if (is_call(edge)) {
        if (rules_[edge.rule].is_nullable) {
          reach(edge.target);
        } else {
          waiting[edge.rule].push_back(edge.target);
        }
      }
    }
    const uint32_t rule = rule_of_[state];
    if (is_final_[state] && !rules_[rule].is_nullable) {
      rules_[rule].is_nullable = true;
      for (const uint32_t target : waiting[rule]) reach(target);
      waiting[rule].clear();
    }
  }
}

// x{m,n} with a nullable x becomes up to n times a non-empty x: fewer ways to read the same text.
void GrammarCompiler::relax_nullable_repetitions() {
  for (uint32_t state = 0; state < edges_.size(); ++state) {
    if (!infos_[rule_of_[state]].is_repetition) continue;
    for (Edge& edge : edges_[state]) {
      if (!rules_[edge.rule].is_nullable) continue;
      edge.kind = EdgeKind::call_nonempty;
      is_final_[state] = true;
    }
  }
}

// Ranks rules so that a rule called before anything was read comes after its caller. Such an order exists
// exactly when there is no left recursion.
void GrammarCompiler::rank_rules() {
  std::vector<std::vector<uint32_t>> callees(rules_.size());
  std::vector<uint32_t> n_callers(rules_.size(), 0);
  for (uint32_t state = 0; state < edges_.size(); ++state) {
    if (!at_start_[state]) continue;
    for (const Edge& edge : edges_[state]) {
      if (!is_call(edge)) continue;
      callees[rule_of_[state]].push_back(edge.rule);
      ++n_callers[edge.rule];
    }
  }
  std::vector<uint32_t> todo;
  for (uint32_t rule = 0; rule < rules_.size(); ++rule) {
    if (n_callers[rule] == 0) todo.push_back(rule);
  }
  uint32_t rank = 0;
  while (!todo.empty()) {
    const uint32_t rule = todo.back();
    todo.pop_back();
    rules_[rule].rank = rank++;
    for (const uint32_t callee : callees[rule]) {
      if (--n_callers[callee] == 0) todo.push_back(callee);
    }
  }
  if (rank != rules_.size()) left_recursion(callees, n_callers);
}

// Reports a cycle among the rules that still have callers: following callers backwards must find one.
void GrammarCompiler::left_recursion(const std::vector<std::vector<uint32_t>>& callees,
                                     const std::vector<uint32_t>& n_callers) {
  std::vector<uint32_t> caller(rules_.size(), 0);
  for (uint32_t rule = 0; rule < rules_.size(); ++rule) {
    if (n_callers[rule] == 0) continue;
    for (const uint32_t callee : callees[rule]) caller[callee] = rule;
  }
  const auto left = std::find_if(n_callers.begin(), n_callers.end(), [](uint32_t n) { return n > 0; });
  auto rule = static_cast<uint32_t>(left - n_callers.begin());
  std::vector<bool> seen(rules_.size(), false);
  for (; !seen[rule]; rule = caller[rule]) seen[rule] = true;
  std::vector<uint32_t> owners;  // of the cycle, backwards; a rule and its repetitions count as one
  const uint32_t start = rule;
  do {
    if (owners.empty() || owners.back() != infos_[rule].owner) owners.push_back(infos_[rule].owner);
    rule = caller[rule];
  } while (rule != start);
  if (owners.size() > 1 && owners.back() == owners.front()) owners.pop_back();
  const uint32_t first = owners.front();
  std::string cycle = printable(syntax_.rules[first].name);
  constexpr size_t kShown = 8;
  if (owners.size() > kShown) {
    cycle += " -> ...";
    owners.resize(kShown);
  }
  for (auto owner = owners.rbegin(); owner + 1 != owners.rend(); ++owner) {
    cycle += " -> " + printable(syntax_.rules[*owner].name);
  }
  cycle += " -> " + printable(syntax_.rules[first].name);
  grammar_error(source_, syntax_.rules[first].at,
                "left recursion: a rule calls itself before it has read anything: " + cycle);
}

// Checks that every rule can end after finitely many edges. Works like find_nullable.
void GrammarCompiler::check_ends() {
  std::vector<bool> reached(edges_.size(), false), ends(rules_.size(), false);
  std::vector<std::vector<uint32_t>> waiting(rules_.size());
  std::vector<uint32_t> todo;
  const auto reach = [&](uint32_t state) {
    if (reached[state]) return;
    reached[state] = true;
    todo.push_back(state);
  };
  for (const Grammar::Rule& rule : rules_) reach(rule.entry);
  while (!todo.empty()) {
    const uint32_t state = todo.back();
    todo.pop_back();
    for (const Edge& edge : edges_[state]) {
      if (is_call(edge) && !ends[edge.rule]) {
        waiting[edge.rule].push_back(edge.target);
      } else {
        reach(edge.target);
      }
    }
    const uint32_t rule = rule_of_[state];
    if (is_final_[state] && !ends[rule]) {
      ends[rule] = true;
      for (const uint32_t target : waiting[rule]) reach(target);
      waiting[rule].clear();
    }
  }
  const auto endless = std::find(ends.begin(), ends.end(), false);
  if (endless == ends.end()) return;
  const SyntaxRule& rule = syntax_.rules[infos_[endless - ends.begin()].owner];
  grammar_error(source_, rule.at,
                "rule '" + printable(rule.name) + "' has no end: every alternative recurses");
}

// Maps each state whose only edge reads nothing to the state where it leads.
std::vector<uint32_t> GrammarCompiler::skip_empty_edges() const {
  constexpr uint32_t kUnknown = kNoLimit;
  std::vector<uint32_t> end(edges_.size(), kUnknown);
  std::vector<uint32_t> path;
  for (uint32_t start = 0; start < edges_.size(); ++start) {
    uint32_t state = start;
    path.clear();
    while (end[state] == kUnknown) {
      path.push_back(state);
      end[state] = state;  // also breaks cycles
      const auto& edges = edges_[state];
      if (is_final_[state] || edges.size() != 1 || edges[0].kind != EdgeKind::nothing) break;
      state = edges[0].target;
    }
    for (const uint32_t passed : path) end[passed] = end[state];
  }
  return end;
}

// Copies everything into flat arrays.
std::shared_ptr<const Grammar> GrammarCompiler::finish() {
  std::shared_ptr<Grammar> grammar(new Grammar);
  grammar->root_ = syntax_.root;
  grammar->rules_ = rules_;
  const std::vector<uint32_t> end = skip_empty_edges();
  std::vector<bool> starts_class(257, false);
  for (uint32_t state = 0; state < edges_.size(); ++state) {
    const auto& edges = edges_[state];
    const bool reads =
        std::any_of(edges.begin(), edges.end(), [](const Edge& e) { return e.kind == EdgeKind::byte; });
    grammar->states_.push_back({static_cast<uint32_t>(grammar->edges_.size()),
                                static_cast<uint32_t>(edges.size()), is_final_[state],
                                is_final_[state] && edges.empty(), reads});
    for (Edge edge : edges) {
      edge.target = end[edge.target];
      grammar->edges_.push_back(edge);
      if (edge.kind == EdgeKind::byte) starts_class[edge.low] = starts_class[edge.high + 1u] = true;
    }
  }
  uint8_t byte_class = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte > 0 && starts_class[byte]) ++byte_class;
    grammar->byte_class_[byte] = byte_class;
  }
  grammar->n_byte_classes_ = byte_class + 1u;
  return grammar;
}

std::shared_ptr<const Grammar> GrammarCompiler::compile() {
  emit_rules();
  find_nullable();
  relax_nullable_repetitions();
  rank_rules();
  check_ends();

  return finish();
}

std::shared_ptr<const Grammar> Grammar::parse(std::string_view gbnf, const GrammarSource& source) {
  const GrammarSyntax syntax = parse_gbnf(gbnf, source);
  return GrammarCompiler(syntax, source).compile();
}

}  // namespace tandem
