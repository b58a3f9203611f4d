// Stage: some consecutive layers of a model as an architecture of its own, for ranks that compute a model's layers one after
// the other. Its graphs are those of the whole model, cut before its first and behind its last layer: what crosses a cut is
// received and sent (Graph::received, Graph::sent), which is the residual stream and, in some families, more. The first stage
// has the embedding, the last one the output head. Layers keep their numbers.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "model/architecture.h"

namespace tandem {

// Layers first .. end - 1.
struct LayerRange {
  int first = 0, end = 0;

  bool operator==(const LayerRange&) const = default;
  int size() const { return end - first; }
  bool has(int layer) const { return layer >= first && layer < end; }
};

class Stage final : public Architecture {
 public:
  // `weights` are those of `whole`, and outlive it. Throws Error(usage) if a layer reads the cache of a layer in another
  // stage.
  Stage(std::unique_ptr<Architecture> whole, const std::deque<Weight>& weights, LayerRange layers);

  LayerRange layers() const { return layers_; }
  // Copies of those that its graphs read.
  const std::deque<Weight>& weights() const { return weights_; }

  // Nothing for the layers of other stages.
  KvShape kv_shape(int layer) const override;
  Graph build(const ShapeClass& shape) const override;

 private:
  Graph cut(Graph graph) const;

  std::unique_ptr<Architecture> whole_;
  LayerRange layers_;
  std::deque<Weight> weights_;
  std::vector<std::pair<const Weight*, const Weight*>> copies_;  // of whole_ and of weights_, sorted
};

// What a layer takes; the first layer also has the embedding, the last one the output head.
struct LayerLoad {
  double n_bytes = 0;     // of weights
  double read_bytes = 0;  // of them, for one token
  double kv_bytes = 0;    // of its cache, for one token, in 16 bits
};
std::vector<LayerLoad> layer_loads(const Architecture& whole);
// Whether a stage may begin with each layer: no later layer reads the cache of an earlier one. [n_layer + 1]; a stage may
// also end behind the last one.
std::vector<bool> possible_cuts(const Architecture& whole);

}  // namespace tandem
