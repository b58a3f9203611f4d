// How the layers of a model are divided over stages: such that the slowest stage is as fast as it can be, which is what a
// pipeline's prompts take, and within the memory of each. Every rank computes the same from the same numbers.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/stage.h"

namespace tandem {

// What a rank has. A stage's layers go to its GPUs as far as they fit, the others stay in host memory.
struct RankPower {
  double gpu_bytes = 0, gpu_bytes_per_s = 0;  // memory of its GPUs together, and how fast they read it
  double host_bytes = 0, host_bytes_per_s = 1;

  // To read the weights of a stage once; none: it does not fit.
  std::optional<double> seconds(double n_bytes, double read_bytes) const;
};

struct LayerShares {
  std::vector<LayerRange> ranges;   // of each rank
  double slowest_s = 0, sum_s = 0;  // to read the weights for one token: of the slowest stage, of all
};

// loads: [n_layer], cuts: [n_layer + 1], as layer_loads() and possible_cuts() return them. n_ctx: tokens whose cache must fit
// too. Throws Error(usage) if there are fewer possible stages than ranks, Error(out_of_memory) if the layers fit no way.
LayerShares divide_layers(std::span<const LayerLoad> loads, const std::vector<bool>& cuts,
                          std::span<const RankPower> ranks, double n_ctx);

// Layers as the user has set them. Throws Error(usage) if they are not those of the model, or a cut is not possible.
std::vector<LayerRange> given_layers(std::span<const int64_t> n_layers, const std::vector<bool>& cuts,
                                     size_t n_ranks);

}  // namespace tandem
