// SpreadGraph: a graph while it is divided over devices: where the values of each tensor are, the nodes of each device so
// far, and what brings values to where a node needs them. tensor_parallel.cpp has the rules for each op.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exec/tensor_cuts.h"

namespace tandem {

// Where the values of a tensor of the built graph are.
struct Spread {
  enum class Kind : uint8_t {
    everywhere,  // all devices have all columns
    divided,     // each has those of its groups
    partial,     // the values are the sum of what the devices have
    alone,       // one device has them, and computes further with them
  };
  Kind kind = Kind::everywhere;
  std::vector<TensorId> at;       // [device]; kNoTensor: it has no groups, or adds nothing
  std::optional<DeviceId> maker;  // if one device has made it for all: `at` is then one tensor
  Cuts cuts;                      // if divided
};

class SpreadGraph {
 public:
  // `placement`, which outlives it, has devices that compute together.
  SpreadGraph(Graph graph, const Placement& placement);

  const Graph& graph() const { return graph_; }
  const Placement& placement() const { return placement_; }
  size_t n_devices() const { return devices_.size(); }
  bool has(DeviceId device) const { return placement_.parallel->find(device).has_value(); }

  // ---- Where values are ----

  // Null for weights and inputs of the step, which are where they are needed.
  const Spread* find(TensorId id) const;
  const Spread& at(TensorId id) const { return spread_.at(id); }
  bool is(TensorId id, Spread::Kind kind) const;
  void set(TensorId id, Spread spread) { spread_[id] = std::move(spread); }
  // Parts of a sum. They stay as they are until all_reduce(): perhaps something is added to them before. Those of devices
  // without groups are from an earlier sum.
  void set_partial(const Node& node, std::vector<TensorId> parts, const Cuts& cuts);
  Spread everywhere() const;
  Spread divided(const Cuts& cuts) const;
  int64_t columns_of(TensorId output, size_t i, const Cuts& cuts) const {
    return cuts.n_of(i, graph_.tensor(output).n_cols);
  }

  // ---- Values where they are needed ----

  // All columns of a tensor, for device i.
  TensorId whole_at(TensorId id, size_t i);
  // The same for one device alone, which may be none of those that divide layers.
  TensorId whole_on(TensorId id, DeviceId device);
  // The columns of device i, which has some.
  TensorId part_of(TensorId id, size_t i, const Cuts& cuts);
  // Sums the parts, in their place, but for those that another sum has too.
  void all_reduce(TensorId id);
  // Gives all devices, or only the first one, the columns of all.
  enum class To : uint8_t { all, first };
  void gather(TensorId id, To to = To::all);

  // Device i's rows of a matrix or elements of a vector; its columns of a matrix; its matrices of heads or experts, or their
  // rows of biases.
  TensorId rows(TensorId id, size_t i, const Cuts& cuts);
  TensorId columns(TensorId id, size_t i, const Cuts& cuts);
  TensorId mats(TensorId id, size_t i, const Cuts& cuts);

  // ---- Nodes ----

  void for_each_device(const auto& f) {
    for (size_t i = 0; i < devices_.size(); ++i) f(i);
  }
  void for_each_with(const Cuts& cuts, const auto& f) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (cuts.has(i)) f(i);
    }
  }
  // Gives device i a node; returns its output, with n_cols columns.
  TensorId emit(size_t i, const Node& like, Op op, int64_t n_cols);
  // The same with all columns. The first device's output keeps the tensor's id, by which everything else finds it.
  TensorId emit_whole(size_t i, const Node& like, Op op);
  // Adds a node that one device runs for all, behind all nodes so far. `like`: as it was built.
  void emit_alone(const Node& like, Node node);
  // Adds a node as it is.
  void append(const Node& node);

  // The graph of all nodes so far, without those that nothing needs.
  Graph finish();

 private:
  // For what, and where, nodes are added: device i's columns of `like`.
  struct Place {
    TensorId like;
    size_t i;
    int layer;
    DeviceId device;
  };
  TensorId take(std::vector<Node>& nodes, TensorId x, const ColumnRuns& runs, const Place& place,
                TensorId output = kNoTensor);
  int64_t n_in_parts(const Cuts& cuts, int64_t n_cols) const;
  ColumnRuns order_in_parts(const Cuts& cuts, int64_t n_cols) const;
  TensorId joined(TensorId id, DeviceId device);
  TensorId add_weight(const Weight* slice);
  TensorId push(size_t i, const Node& like, Op op, TensorId output);
  void set_storage(const Node& like, const Op& op, TensorId output);
  TensorId built_storage(TensorId id);
  TensorId add_like(TensorId id, size_t i, int64_t n_cols);
  TensorId add(Tensor t);
  Tensor& tensor(TensorId id) { return graph_.tensors[static_cast<size_t>(id)]; }
  void issue();
  std::vector<Node> without_unused();

  Graph graph_;
  const Placement& placement_;
  const std::vector<DeviceId>& devices_;
  std::vector<size_t> order_;               // of devices, in which they are issued
  std::vector<std::vector<Node>> waiting_;  // [device] not issued yet
  std::vector<Node> result_;
  std::map<TensorId, Spread> spread_;     // of the built graph's activations
  std::map<TensorId, TensorId> storage_;  // of tensors, before it was changed
  std::map<TensorId, int> layer_of_;      // of the nodes that made them
  std::map<std::pair<TensorId, DeviceId>, TensorId> joined_;
  std::map<const Weight*, TensorId> weights_;
  std::set<TensorId> passed_on_;  // parts of sums that are parts of later sums too
  int32_t n_collectives_ = 0;
};

}  // namespace tandem
