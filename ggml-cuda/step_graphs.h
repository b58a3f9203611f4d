// The launches of an executable's one-token steps, recorded once as a CUDA graph and replayed: one call
// instead of hundreds. What changes from token to token is data in device memory, so a recording stays good
// as long as the scratch stays where it is.
//
// One thread, with the device current.
#pragma once

#include <cuda_runtime.h>

#include <span>
#include <vector>

#include "ggml-cuda/compiled_op.h"

namespace tandem::cuda {

class StepGraphs {
 public:
  StepGraphs() = default;
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Enqueues the ops. The first run of a shape launches them one by one, which also loads their kernels;
  // the second records them.
  void run(std::span<const CompiledOpPtr> ops, const LaunchContext& context);

 private:
  struct Recording {
    StepShape shape;
    std::byte* scratch = nullptr;
    cudaGraphExec_t exec = nullptr;
    bool recordable = true;
  };

  Recording* find(const StepShape& shape);
  static void record(Recording& recording, std::span<const CompiledOpPtr> ops, const LaunchContext& context);

  std::vector<Recording> recordings_;  // one a shape: an executable of one token has few
};

}  // namespace tandem::cuda
