#include "ggml-cuda/step_graphs.h"

#include <algorithm>

#include "base/log.h"
#include "ggml-cuda/fence.h"

namespace tandem::cuda {
namespace {

void launch_all(std::span<const CompiledOpPtr> ops, const LaunchContext& context) {
  for (const CompiledOpPtr& op : ops) op->launch(context);
}

// Ends the capture in every case; returns the graph, or null if a launch could not be captured.
cudaGraph_t capture(std::span<const CompiledOpPtr> ops, const LaunchContext& context) {
  TANDEM_CUDA(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    launch_all(ops, context);
  } catch (const Error& e) {
    cudaStreamEndCapture(context.stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    log_warning("CUDA: steps of few tokens are launched one by one: {}", e.what());
    return nullptr;
  }
  if (const cudaError_t status = cudaStreamEndCapture(context.stream, &graph); status != cudaSuccess) {
    cudaGetLastError();
    log_warning("CUDA: steps of few tokens are launched one by one: {}", cudaGetErrorString(status));
    return nullptr;
  }
  return graph;
}

}  // namespace

void launch_one_by_one(std::span<const CompiledOpPtr> ops, const LaunchContext& context) {
  launch_fence(context.stream);
  launch_all(ops, context);
}

bool StepGraphs::can_record(std::span<const CompiledOpPtr> ops, const StepShape& shape) {
  return shape.n_tokens <= kMaxTokens &&
         std::all_of(ops.begin(), ops.end(), [&](const CompiledOpPtr& op) { return op->repeats(shape); });
}

StepGraphs::~StepGraphs() {
  for (const Recording& r : recordings_) drop(r);
}

void StepGraphs::drop(const Recording& recording) {
  if (recording.exec) cudaGraphExecDestroy(recording.exec);
}

// Moves the recording to the end.
StepGraphs::Recording* StepGraphs::find(const StepShape& shape) {
  const auto found = std::find_if(recordings_.begin(), recordings_.end(), [&](const Recording& r) {
    return r.n_tokens == shape.n_tokens && r.n_outputs == shape.n_outputs;
  });
  if (found == recordings_.end()) return nullptr;
  std::rotate(found, found + 1, recordings_.end());
  return &recordings_.back();
}

void StepGraphs::record(Recording& recording, std::span<const CompiledOpPtr> ops,
                        const LaunchContext& context) {
  if (recording.exec) TANDEM_CUDA(cudaGraphExecDestroy(std::exchange(recording.exec, nullptr)));
  const cudaGraph_t graph = capture(ops, context);
  recording.recordable = graph != nullptr;
  recording.scratch = context.scratch;
  if (!graph) return;
  const cudaError_t status = cudaGraphInstantiate(&recording.exec, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(status, "cudaGraphInstantiate");
}

void StepGraphs::run(std::span<const CompiledOpPtr> ops, const LaunchContext& context) {
  Recording* recording = find(context.shape);
  if (!recording) {
    if (recordings_.size() == kMaxRecordings) {
      TANDEM_CUDA(cudaStreamSynchronize(context.stream));  // it may be running
      drop(recordings_.front());
      recordings_.erase(recordings_.begin());
    }
    recordings_.push_back({context.shape.n_tokens, context.shape.n_outputs});
    return launch_one_by_one(ops, context);
  }
  if (recording->recordable && (!recording->exec || recording->scratch != context.scratch)) {
    record(*recording, ops, context);
  }
  if (!recording->exec) return launch_one_by_one(ops, context);
  TANDEM_CUDA(cudaGraphLaunch(recording->exec, context.stream));
}

}  // namespace tandem::cuda
