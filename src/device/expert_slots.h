// ExpertSlots: the experts that devices keep in slots beside the host's, which has all of them. cached_route on the host
// asks which of a step's experts their layer's device has, before the device computes with those and the host with the
// others (exec/expert_cache.h).
//
// Calls come from one thread, the one that calls Device::run(). Nothing throws: an error is kept for the owner to report
// once the segment has run.
#pragma once

#include <cstdint>
#include <span>

namespace tandem {

struct Weight;

struct SlotRequest {
  const Weight* down = nullptr;      // names the layer
  std::span<const int32_t> experts;  // one for each pair of a token and an expert that it has chosen
  const float* x = nullptr;          // [n_tokens, n_cols] what the experts are applied to; null: not known
  int64_t n_tokens = 0, n_cols = 0;
};

class ExpertSlots {
 public:
  virtual ~ExpertSlots() = default;

  // Fills in the slot of each pair's expert on the device of the layer, or -1: one for each element of `experts`. What the
  // device is given to do next finds these experts in their slots. Brings experts to slots that the step does not use. A
  // negative expert gets -1.
  virtual void find(const SlotRequest& request, std::span<int32_t> slots) = 0;
};

}  // namespace tandem
