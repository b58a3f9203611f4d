// Turns the tensors of a checkpoint into the bytes of the GGUF file, rows at a time on all threads, so that
// memory holds a few megabytes of a tensor (or one matrix of it, where its columns become rows).
//
// Owns its buffers; use one for all tensors. Called from one thread, works on those of the pool. Throws
// Error(bad_file) naming the tensor when weights are NaN, infinite or too large for the target, after having
// counted them all; Error(io) when reading fails, Error(interrupted) after Ctrl-C; the sink may throw too.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "tools/convert/tensor_plan.h"

namespace tandem::tools {

class TensorConverter {
 public:
  explicit TensorConverter(ThreadPool& pool);

  using Sink = std::function<void(std::span<const std::byte> bytes)>;  // in order
  void convert(const TensorPlan& plan, const Sink& sink);

 private:
  struct Buffers {  // of one worker
    std::vector<std::byte> raw;
    std::vector<float> row;
  };
  void convert_values(const TensorPlan& plan, const Sink& sink);
  void convert_floats(const TensorPlan& plan, const Sink& sink);
  void repack_mxfp4(const TensorPlan& plan, const Sink& sink);

  ThreadPool& pool_;
  std::vector<Buffers> buffers_;
  std::vector<std::byte> out_, matrix_;
};

}  // namespace tandem::tools
