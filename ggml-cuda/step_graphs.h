// The launches of an executable's steps of few tokens, recorded once as a CUDA graph and replayed: one call
// instead of hundreds. What changes from step to step is data in device memory, so a recording stays good
// as long as the scratch stays where it is.
//
// One thread, with the device current.
#pragma once

#include <cuda_runtime.h>

#include <span>
#include <vector>

#include "ggml-cuda/compiled_op.h"

namespace tandem::cuda {

// Enqueues the launches of a step's ops.
void launch_one_by_one(std::span<const CompiledOpPtr> ops, const LaunchContext& context);

class StepGraphs {
 public:
  StepGraphs() = default;
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Steps of up to kMaxTokens tokens may be recorded, where every op's launches repeat: their kernels are those of
  // matvec.h, attention_packed.cu and attention_decode.cu. Speculation checks a few guesses a step, batches have a token of each sequence.
  static constexpr int64_t kMaxTokens = 8;
  static bool can_record(std::span<const CompiledOpPtr> ops, const StepShape& shape);

  // Enqueues the ops. The first run of a shape launches them one by one, which also loads their kernels;
  // the second records them.
  void run(std::span<const CompiledOpPtr> ops, const LaunchContext& context);

 private:
  // A recording of a large model takes a megabyte or so of the device's memory.
  static constexpr size_t kMaxRecordings = 24;
  struct Recording {
    int64_t n_tokens, n_outputs;
    std::byte* scratch = nullptr;
    cudaGraphExec_t exec = nullptr;
    bool recordable = true;
  };

  Recording* find(const StepShape& shape);
  static void drop(const Recording& recording);
  static void record(Recording& recording, std::span<const CompiledOpPtr> ops, const LaunchContext& context);

  std::vector<Recording> recordings_;  // one a shape, the last used one last
};

}  // namespace tandem::cuda
