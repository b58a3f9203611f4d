// ExpertRoom: the host memory of chosen experts, planned before anything is allocated: which layers have their experts
// on disk, and how many experts fit. Layers whose experts are equally large share a pool of slots.
//
// Pure functions; any thread.
#pragma once

#include <vector>

#include "exec/expert_router.h"
#include "exec/placement.h"

namespace tandem {

// Steps of more tokens use nearly all experts of a layer, and pass them through few slots.
inline constexpr int64_t kFewTokens = 16;

// A layer of which only chosen experts are read. Null: it has no such matrix.
struct ExpertLayer {
  int layer = 0;
  const Weight *gate = nullptr, *up = nullptr, *down = nullptr;
  int64_t n_expert = 0, n_used = 0;
  int64_t n_on_gpu = 0;  // experts that a GPU keeps in such steps, which do not ask for them here
  ExpertRouter router;

  std::vector<const Weight*> matrices() const;  // those it has, in this order
};

// Bytes of one expert of a matrix, and of the pages that it may lie in.
size_t expert_bytes(const Weight& weight);
size_t expert_page_bytes(const Weight& weight);

struct ExpertPool {
  size_t slot_bytes = 0;
  size_t n_slots = 0;
  std::vector<size_t> layers;  // indices into ExpertRoom::layers

  size_t n_bytes() const { return n_slots * slot_bytes; }
};

struct ExpertRoom {
  std::vector<ExpertLayer> layers;  // in the order of the graph
  std::vector<ExpertPool> pools;

  size_t n_bytes() const;
  size_t n_slots() const;
  size_t n_experts() const;  // of all layers
};

// For the layers that take chosen experts in the graph: all that fit in placement.n_expert_bytes, in each pool at least as
// many as the tokens of a decode step can choose in a layer.
ExpertRoom expert_room(const Graph& graph, const Placement& placement);

}  // namespace tandem
