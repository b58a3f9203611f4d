// TensorCuts: what of a graph is divided between the devices of Placement::parallel, and where it is cut. Found once for a
// graph, before tensor_parallel.h rewrites it by this.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "exec/placement.h"
#include "graph/column_runs.h"

namespace tandem {

// Columns in n_groups equal groups: heads, blocks of a quantized matrix, experts. Device i has those from first[i] up to
// first[i + 1], perhaps none.
struct Cuts {
  int64_t n_groups = 0;
  std::vector<int64_t> first;
  // Of columns that are several ranges side by side (queries, keys and values), each in n_groups groups: their widths, in any
  // unit. A range may be copied: each device that has groups has all of it. Empty: one range that is divided.
  struct Range {
    int64_t width = 0;
    bool is_copied = false;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges = {};

  int64_t n(size_t i) const { return first[i + 1] - first[i]; }
  bool has(size_t i) const { return n(i) > 0; }
  // Whether `total` columns can be cut so.
  bool divides(int64_t total) const;
  // The width of each range of `total` columns.
  std::vector<Range> ranges_of(int64_t total) const;
  // The same groups of columns in other ranges.
  Cuts with(const std::vector<Range>& other) const;
  // Of `total` columns, those that device i has, and how many.
  ColumnRuns runs_of(size_t i, int64_t total) const;
  int64_t n_of(size_t i, int64_t total) const;
  // The first of one range that is divided.
  int64_t first_of(size_t i, int64_t total) const { return total / n_groups * first[i]; }
  bool operator==(const Cuts&) const = default;
};

// Divides groups by the shares, as evenly as whole runs of `unit` groups allow; a device may get none.
Cuts cut_by_shares(const TensorParallel& parallel, int64_t n_groups, int64_t unit = 1);

// Returns the matrix that multiplies y, perhaps after ops that work column by column; null if none does.
const Weight* multiplied_by(const Graph& graph, TensorId y);
// Returns of how many groups, from the first one on, the columns in such a matrix are whole blocks: a unit for cut_by_shares().
int64_t whole_block_groups(const Weight& w, const Cuts& cuts);

class TensorCuts {
 public:
  TensorCuts(const Graph& graph, const Placement& placement);

  // Returns where the result of a linear or glu is cut, each device computing its rows of the matrices; null: nowhere.
  const Cuts* of_output(TensorId output) const { return find(outputs_, output); }
  // Returns where the input of a linear, named by its output, is cut although devices have all of it.
  const Cuts* of_input(TensorId output) const { return find(inputs_, output); }
  // Returns how the experts are divided that moe_ffn nodes with this route, or a part of it, use.
  const Cuts* of_experts(TensorId route) const { return find(routes_, route); }

 private:
  using Map = std::unordered_map<TensorId, Cuts>;
  static const Cuts* find(const Map& map, TensorId id) {
    const auto found = map.find(id);
    return found == map.end() ? nullptr : &found->second;
  }
  const Node* maker(TensorId id) const;
  bool is_divided(const Node& node) const;
  void find_makers();
  std::optional<Cuts> head_cuts(const Node& node, int64_t n_head, int64_t n_head_kv) const;
  void mark(const Node& node);
  void mark_heads(TensorId id, const Cuts& cuts);
  void mark_joined(const JoinOp& op, const Cuts& cuts);
  void mark_state_op(const Node& node);
  void mark_gate(const GateOp& op);
  void mark_gate_behind_host(const LinearOp& op);
  void mark_linear(const Node& node, const LinearOp& op);
  void mark_route(TensorId route, const Cuts& cuts);
  void mark_output_head();
  const DividedState* divided_state(const Node& node) const;
  const Node* cache_op_behind(TensorId x) const;
  Cuts row_cuts(int64_t n_rows) const;
  Cuts block_cuts(const LinearOp& op) const;

  const Graph& graph_;
  const Placement& placement_;
  const TensorParallel& parallel_;
  std::vector<const Node*> makers_;  // [TensorId]
  Map outputs_, inputs_, routes_;
};

// Divides the caches of layers whose attention runs on one of the devices: by key-value heads, so many that the columns of
// the product behind are whole blocks if that leaves each device some; where all queries read one key-value head, by query
// heads, and each device has a copy. States of recurrent layers likewise (recurrent_cuts.h).
void divide_caches(Placement& placement, const Graph& graph);

}  // namespace tandem
