#include "exec/expert_room.h"

#include <algorithm>

#include "base/checked.h"
#include "base/disk_reader.h"
#include "base/error.h"

namespace tandem {
namespace {

size_t slot_bytes(const ExpertLayer& layer) {
  size_t n_bytes = 0;
  for (const Weight* matrix : layer.matrices()) n_bytes += expert_page_bytes(*matrix);
  return n_bytes;
}

// A pool before its slots are counted.
struct Need {
  size_t most = 0, least = 0;  // slots
};

// What is left beyond the least is divided in proportion to what the pools could use.
void divide(std::vector<ExpertPool>& pools, const std::vector<Need>& needs, size_t n_bytes) {
  size_t least = 0;
  double more = 0;
  for (size_t i = 0; i < pools.size(); ++i) {
    least += needs[i].least * pools[i].slot_bytes;
    more += static_cast<double>((needs[i].most - needs[i].least) * pools[i].slot_bytes);
  }
  const double left = n_bytes > least ? static_cast<double>(n_bytes - least) : 0;
  for (size_t i = 0; i < pools.size(); ++i) {
    const size_t open = needs[i].most - needs[i].least;
    const double share = more > 0 ? std::min(1.0, left / more) : 0;
    pools[i].n_slots = needs[i].least + static_cast<size_t>(share * static_cast<double>(open));
  }
}

}  // namespace

std::vector<const Weight*> ExpertLayer::matrices() const {
  std::vector<const Weight*> list;
  for (const Weight* matrix : {gate, up, down}) {
    if (matrix) list.push_back(matrix);
  }
  return list;
}

size_t expert_bytes(const Weight& weight) {
  return weight.n_bytes() / static_cast<size_t>(weight.n_mats);
}

size_t expert_page_bytes(const Weight& weight) {
  return align_up(expert_bytes(weight), kDiskAlignment) + kDiskAlignment;
}

size_t ExpertRoom::n_bytes() const {
  size_t sum = 0;
  for (const ExpertPool& pool : pools) sum += pool.n_bytes();
  return sum;
}

size_t ExpertRoom::n_slots() const {
  size_t sum = 0;
  for (const ExpertPool& pool : pools) sum += pool.n_slots;
  return sum;
}

size_t ExpertRoom::n_experts() const {
  size_t sum = 0;
  for (const ExpertLayer& layer : layers) sum += static_cast<size_t>(layer.n_expert);
  return sum;
}

ExpertRoom expert_room(const Graph& graph, const Placement& placement) {
  ExpertRoom room;
  std::vector<Need> needs;
  const auto weight = [&](TensorId id) { return id == kNoTensor ? nullptr : graph.tensor(id).weight; };
  for (const Node& node : graph.nodes) {
    const auto* op = std::get_if<MoeFfnOp>(&node.op);
    if (!op || !placement.takes_chosen(graph, node, *weight(op->down))) continue;
    if (!room.layers.empty() && room.layers.back().layer == node.layer) {  // the others of its experts
      room.layers.back().n_used += op->n_used;
      continue;
    }
    const CachedExperts* cached = cached_experts(*placement.home_of(node), step_kind(graph.shape));
    const ExpertLayer layer{node.layer,
                            weight(op->gate),
                            weight(op->up),
                            weight(op->down),
                            op->n_expert,
                            op->n_used,
                            cached ? cached->n_slots : 0,
                            router_of(graph, *op)};
    const size_t n_bytes = slot_bytes(layer);
    auto pool = std::ranges::find(room.pools, n_bytes, &ExpertPool::slot_bytes);
    if (pool == room.pools.end()) {
      pool = room.pools.insert(pool, ExpertPool{n_bytes, 0, {}});
      needs.emplace_back();
    }
    pool->layers.push_back(room.layers.size());
    room.layers.push_back(layer);
    Need& need = needs[static_cast<size_t>(pool - room.pools.begin())];
    need.most += static_cast<size_t>(op->n_expert);
    const int64_t n_tokens = graph.shape.max_sequences + graph.shape.n_draft;
    need.least = std::max(need.least, static_cast<size_t>(std::min(op->n_expert, op->n_used * n_tokens)));
  }
  divide(room.pools, needs, placement.n_expert_bytes);
  return room;
}

}  // namespace tandem
