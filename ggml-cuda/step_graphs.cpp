#include "ggml-cuda/step_graphs.h"

#include "base/log.h"

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
    log_warning("CUDA: steps of one token are launched one by one: {}", e.what());
    return nullptr;
  }
  if (const cudaError_t status = cudaStreamEndCapture(context.stream, &graph); status != cudaSuccess) {
    cudaGetLastError();
    log_warning("CUDA: steps of one token are launched one by one: {}", cudaGetErrorString(status));
    return nullptr;
  }
  return graph;
}

}  // namespace

StepGraphs::~StepGraphs() {
  for (const Recording& r : recordings_) {
    if (r.exec) cudaGraphExecDestroy(r.exec);
  }
}

StepGraphs::Recording* StepGraphs::find(const StepShape& shape) {
  for (Recording& r : recordings_) {
    if (r.shape.n_tokens == shape.n_tokens && r.shape.n_outputs == shape.n_outputs) return &r;
  }
  return nullptr;
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
    recordings_.push_back({context.shape});
    return launch_all(ops, context);
  }
  if (recording->recordable && (!recording->exec || recording->scratch != context.scratch)) {
    record(*recording, ops, context);
  }
  if (!recording->exec) return launch_all(ops, context);
  TANDEM_CUDA(cudaGraphLaunch(recording->exec, context.stream));
}

}  // namespace tandem::cuda
