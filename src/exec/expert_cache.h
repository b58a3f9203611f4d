// ExpertCache: which experts GPUs have in their slots (CachedExperts), beside the host, which has all. The slots hold a
// layer's first experts in the beginning. Of the experts that a step chooses and the GPU lacks, it brings a share there for
// the step itself, and for later ones one more in every step or in some, if the policy prefers it to one that is there. So
// what is brought neither keeps the GPU waiting longer than the host computes nor takes much of the bus.
//
// Fetches are ordered behind all that the GPU was given before. An expert that the step uses is never replaced.
// Does not own the slots. One thread; after an error, check() throws it and forget() must follow.
#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "device/device.h"
#include "device/expert_slots.h"
#include "exec/cache_policy.h"
#include "exec/divide_experts.h"
#include "exec/expert_counts.h"
#include "exec/expert_use.h"

namespace tandem {

class ExpertCache final : public ExpertSlots {
 public:
  explicit ExpertCache(std::span<Device* const> devices) : devices_(devices.begin(), devices.end()) {}

  // Adds layers that are not known yet. `address` returns that of a weight of slots on its device, which has been uploaded.
  using Addresses = std::function<DevicePtr(DeviceId device, const Weight& slots)>;
  void add(std::span<const CachedLayer> layers, const Addresses& address);
  // Fills the slots with the experts used most. Before the first step. Throws as Device::fetch.
  void bring_most_used(const ExpertUse& use);

  void find(const Weight& down, std::span<const int32_t> experts, std::span<int32_t> slots) override;

  size_t n_layers() const { return layers_.size(); }
  const ExpertCacheCounts& counts() const { return counts_; }  // since the cache was made
  const ExpertUse& use() const { return use_; }                // since the cache was made

  void check() const;  // throws the error of find()
  // After a failed step: what is in the slots is unknown, so nothing is.
  void forget();

 private:
  struct Slot {
    int32_t expert = -1;  // none: -1
    bool in_use = false;  // by the step
    bool under_way = false;
    Event fetched = 0;
  };
  struct Layer {
    CachedLayer in;
    Device* device = nullptr;
    std::vector<DevicePtr> bases;              // of in.weights
    std::vector<std::vector<Weight>> singles;  // [expert] its own of in.weights, once it has been brought
    std::vector<Slot> slots;
    std::vector<int32_t> slot_of;   // [expert] -1: none
    std::vector<int64_t> n_tokens;  // [expert] of the step
    double may_keep = 0;            // experts that may be brought for later
    std::unique_ptr<CachePolicy> policy;
  };

  Layer& layer_of(const Weight& down);
  void find_in(Layer& layer, std::span<const int32_t> experts, std::span<int32_t> slots);
  void list_step(Layer& layer, std::span<const int32_t> experts);
  void use_slot(Layer& layer, Slot& slot);
  Slot* bring(Layer& layer, int32_t expert);
  void fetch(Layer& layer, Slot& slot, int32_t expert, Event after);

  std::vector<Device*> devices_;
  std::vector<Layer> layers_;
  std::vector<int32_t> chosen_, missing_;  // experts of the step
  ExpertCacheCounts counts_;
  ExpertUse use_;
  std::exception_ptr error_;
};

}  // namespace tandem
