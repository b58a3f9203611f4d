// StepRelay: how the runtime of a stage (model/stage.h) works with those of the other stages. One of them leads: the others
// make the steps that it makes, and it gets the logits. Called by the runtime's thread.
#pragma once

#include <span>

#include "engine/step_logits.h"
#include "exec/stage_link.h"

namespace tandem {

struct BatchSlice;

class StepRelay {
 public:
  virtual ~StepRelay() = default;
  // For the activations of a step.
  virtual StageLink& link() = 0;
  // Before a step, with its tokens appended to the sequence already. The stage that leads tells the others.
  virtual void begin(std::span<const BatchSlice> slices, LogitsWanted wanted) = 0;
  // After the stage's part of it. Returns the logits, of a stage that does not lead those it has made, if any.
  virtual StepLogits end(StepLogits of_this_stage, LogitsWanted wanted) = 0;
  // Tokens of each step of a prompt of n, so that all stages have something to do; at most n_ubatch.
  virtual int64_t micro_batch(int64_t n, int64_t n_ubatch) const = 0;
};

}  // namespace tandem
