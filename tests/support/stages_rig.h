// A model over simulated ranks, each with some of its layers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/session.h"
#include "pipeline/pipeline.h"
#include "support/sim_ranks.h"

namespace tandem::test {

struct StagesRig {
  std::string model;               // a file
  std::vector<LayerRange> layers;  // of each rank
  EngineOptions options;
  SimRankOptions ranks;
  // Simulated GPUs of a rank; empty: none.
  std::function<std::vector<Device*>(int rank)> gpus;
  std::function<void(Pipeline& pipeline)> on_lead;  // on rank 0, before its session
  // Of each rank, after a run.
  std::vector<StageTimes> times;
  std::vector<size_t> weight_bytes;

  // Runs `lead` on rank 0, whose session the other ranks follow.
  std::vector<SimRankEnd> run(const std::function<void(Session& session)>& lead);
};

// n_ranks stages of about the same number of layers, as far as cuts allow it (possible_cuts()). Empty if there are fewer
// possible stages than ranks.
std::vector<LayerRange> stages_of(const std::vector<bool>& cuts, int n_ranks);

}  // namespace tandem::test
