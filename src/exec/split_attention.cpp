#include "exec/split_attention.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "graph/latent_form.h"

namespace tandem {
namespace {

class Splitter {
 public:
  Splitter(Graph graph, const Placement& placement, CacheReach reach)
      : graph_(std::move(graph)), placement_(placement), reach_(reach) {}

  Graph run() {
    graph_.shape.max_hot_blocks = placement_.split()->n_blocks;
    std::vector<Node> built = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node& node : built) {
      const SplitKv* home = split_home(node);
      if (const auto* latent = std::get_if<LatentAttentionOp>(&node.op); latent && home) {
        absorb(node, *latent, *home);
        continue;
      }
      if (auto* write = std::get_if<KvWriteOp>(&node.op); write && home) {
        write->slots = input(Input::hot_slots, "hot_slots", 1, graph_.shape.max_tokens);
      }
      if (const auto* attention = std::get_if<AttentionOp>(&node.op); home && attention) {
        TANDEM_CHECK(!attention->gives_logarithms);  // plan/choices.h chooses no such home
        split(std::move(node), *home);
      } else {
        graph_.nodes.push_back(std::move(node));
      }
    }
    return std::move(graph_);
  }

 private:
  // The absorbed form as nodes of its own: the parts' results are merged before v_up multiplies them.
  void absorb(const Node& node, const LatentAttentionOp& latent, const SplitKv& home) {
    const AttentionParams params = absorbed_attention(latent);
    Tensor like = graph_.tensor(node.output);
    like.name += ".queries";
    like.n_cols = params.n_head * params.head_dim_k;
    const TensorId q = add(like);
    like.name = graph_.tensor(node.output).name + ".rows";
    like.n_cols = params.n_head * params.head_dim_v;
    const TensorId rows = add(like);
    graph_.nodes.push_back(Node{HeadLinearOp{latent.q, latent.k_up}, q, node.layer, node.device});
    const AttentionOp attention{params, q, latent.positions, latent.sequences, latent.block_table};
    split(Node{attention, rows, node.layer, node.device}, home);
    graph_.nodes.push_back(Node{HeadLinearOp{rows, latent.v_up}, node.output, node.layer, node.device});
  }

  // Returns the home of the node's layer; null if its cache is not split, and outside of layers.
  const SplitKv* split_home(const Node& node) const {
    if (node.layer < 0 || static_cast<size_t>(node.layer) >= placement_.layers.size()) return nullptr;
    return std::get_if<SplitKv>(&placement_.layers[node.layer].kv);
  }

  void split(Node whole, const SplitKv& home) {
    auto& op = std::get<AttentionOp>(whole.op);
    const ShapeClass& shape = graph_.shape;
    const TensorId blocks = input(Input::hot_blocks, "hot_blocks", shape.max_sequences, shape.max_hot_blocks);
    if (reach_ == CacheReach::hot_cache) {  // which holds everything
      op.block_table = blocks;
      graph_.nodes.push_back(std::move(whole));
      return;
    }
    const TensorId from = input(Input::hot_from, "hot_from", 1, shape.max_sequences);

    Node hot = part(whole, KvPart::hot, from, home.hot);
    std::get<AttentionOp>(hot.op).block_table = blocks;
    MergeOp merge{{op.n_head, op.head_dim_v}, hot.output, hot.output};  // merged with itself: unchanged
    graph_.nodes.push_back(std::move(hot));
    if (!is_hot(op, home)) {
      Node cold = part(whole, KvPart::cold, from, DeviceId::host());
      std::get<AttentionOp>(cold.op).sinks = kNoTensor;  // only one part counts them
      merge.b = cold.output;
      graph_.nodes.push_back(std::move(cold));
    }
    graph_.nodes.push_back(Node{merge, whole.output, whole.layer, home.hot});
  }

  // Returns whether the window never reaches past the hot cache, which holds n_keep positions before those
  // of a step.
  static bool is_hot(const AttentionOp& op, const SplitKv& home) {
    return op.window > 0 && op.window <= home.n_keep + 1;
  }

  Node part(const Node& whole, KvPart which, TensorId from, DeviceId device) {
    Node node = whole;
    AttentionOp& op = std::get<AttentionOp>(node.op);
    op.part = which;
    op.hot_from = from;
    node.device = device;
    Tensor result = graph_.tensor(whole.output);
    TANDEM_CHECK(result.storage == whole.output);
    result.name += which == KvPart::cold ? ".cold" : ".hot";
    result.n_cols = op.n_head * (op.head_dim_v + 1);
    node.output = add(std::move(result));
    return node;
  }

  TensorId input(Input which, const char* name, int64_t n_rows, int64_t n_cols) {
    TensorId& id = graph_.inputs[static_cast<size_t>(which)];
    if (id != kNoTensor) return id;
    Tensor t;
    t.name = name;
    t.role = Role::input;
    t.dtype = DType::I32;
    t.input = which;
    t.n_rows = n_rows;
    t.n_cols = n_cols;
    return id = add(std::move(t));
  }

  TensorId add(Tensor tensor) {
    const auto id = static_cast<TensorId>(graph_.tensors.size());
    tensor.storage = id;
    graph_.tensors.push_back(std::move(tensor));
    return id;
  }

  Graph graph_;
  const Placement& placement_;
  CacheReach reach_;
};

}  // namespace

Graph split_attention(Graph graph, const Placement& placement, CacheReach reach) {
  TANDEM_CHECK(placement.splits_caches());
  return Splitter(std::move(graph), placement, reach).run();
}

}  // namespace tandem
