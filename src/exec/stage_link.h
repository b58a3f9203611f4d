// StageLink: where the executor of a stage (model/stage.h) sends activations to, and where it gets them from. Its functions
// are called in the order of the schedule, by the executor's thread.
#pragma once

#include <cstddef>
#include <span>

namespace tandem {

class StageLink {
 public:
  virtual ~StageLink() = default;
  // To the stage that follows. Copies the bytes; may wait until that stage has taken earlier ones.
  virtual void send(std::span<const std::byte> bytes) = 0;
  // From the stage before, exactly so many bytes; waits for them.
  virtual void receive(std::span<std::byte> bytes) = 0;
};

}  // namespace tandem
