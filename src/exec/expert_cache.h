// ExpertCache: which experts GPUs have in their slots (CachedExperts), beside the host, which has all, or reads what it lacks
// from disk (expert_store.h). The slots hold a layer's first experts in the beginning; of experts on disk, none. Of the
// experts that a step chooses and the GPU lacks, it brings a share there for the step itself, and for later ones one more in
// every step or in some, if the policy prefers it to one that is there. So what is brought neither keeps the GPU waiting
// longer than the host computes nor takes much of the bus. A policy that looks ahead has the latter brought before a step
// asks for them, by guesses of the layer before.
//
// An expert on disk is brought from the store, on loan until the copy is complete: for the step if it is there already, and
// for later also when the step has read it.
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
#include "exec/expert_guess.h"
#include "exec/expert_loans.h"
#include "exec/expert_store.h"
#include "exec/expert_use.h"
#include "exec/pinned_weights.h"

namespace tandem {

class ExpertCache final : public ExpertSlots, public ExpertBorrower {
 public:
  // `store` has the layers that are on disk. All outlive the cache.
  ExpertCache(std::span<Device* const> devices, ExpertStore& store,
              MakeCachePolicy policy = usual_cache_policy);
  ~ExpertCache() override;
  ExpertCache(const ExpertCache&) = delete;
  ExpertCache& operator=(const ExpertCache&) = delete;

  // Adds layers that are not known yet. `address` returns that of a weight of slots on its device, which has been uploaded;
  // of layers on disk, nothing has.
  using Addresses = std::function<DevicePtr(DeviceId device, const Weight& slots)>;
  void add(std::span<const CachedLayer> layers, const Addresses& address);
  // Fills the slots with the experts used most. Before the first step. Throws as Device::fetch and Error(io).
  void bring_most_used(const ExpertUse& use);

  void find(const SlotRequest& request, std::span<int32_t> slots) override;
  bool has(const Weight& down, int32_t expert) const override;
  bool give_back_one() override { return loans_.end_one(); }

  // Calls fn at every find() of a layer that is not on disk; of the others, the store tells.
  using Watcher = ExpertStore::Watcher;
  void watch(Watcher fn) { watcher_ = std::move(fn); }
  // From now on the weights of experts in host memory are page-locked where that pays; outlives the cache.
  void pin(PinnedWeights& pinned) { pinned_ = &pinned; }

  size_t n_layers() const { return layers_.size(); }
  const ExpertCacheCounts& counts() const { return counts_; }  // since the cache was made
  // Since the cache was made; of layers on disk, without what the store was asked for.
  const ExpertUse& use() const { return use_; }

  void check() const;  // throws the error of find()
  // After a failed step: what is in the slots is unknown, so nothing is. Before ExpertStore::forget().
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
    bool has_guesses = false;       // of the coming step
    std::unique_ptr<CachePolicy> policy;
  };
  // An expert to be brought when the step has read it.
  struct Wanted {
    size_t layer;
    int32_t expert;
  };

  size_t index_of(const Weight& down) const;
  void find_in(size_t index, const SlotRequest& request, std::span<int32_t> slots);
  void list_step(size_t index, const SlotRequest& request);
  void tell_chosen(size_t index, const SlotRequest& request);
  std::span<const int32_t> guess(size_t index, const SlotRequest& request);
  void fill_in(Layer& layer, std::span<const int32_t> experts, std::span<int32_t> slots);
  void use_slot(Layer& layer, Slot& slot);
  void bring_for_step(Layer& layer);
  void bring_for_later(size_t index);
  void bring_wanted();
  static void gain(Layer& layer);
  void look_ahead(size_t index, const SlotRequest& request);
  bool is_at_hand(const Layer& layer, int32_t expert);
  Slot* bring(Layer& layer, int32_t expert);
  void fetch(Layer& layer, Slot& slot, int32_t expert, Event after);
  void order_by_use(Layer& layer, const std::vector<uint64_t>& counts, std::vector<int32_t>& order) const;
  void fill(Layer& layer, std::span<const int32_t> experts);
  bool read_for_fill(const Weight& down, std::span<const int32_t> experts);

  std::vector<Device*> devices_;
  ExpertStore& store_;
  MakeCachePolicy make_policy_;
  std::vector<Layer> layers_;  // in the order of the graph
  ExpertLoans loans_;
  std::vector<Wanted> wanted_;
  std::vector<int32_t> chosen_, missing_;  // experts of the step
  std::vector<WantedExpert> told_;
  ExpertGuesser guesser_;
  ExpertCacheCounts counts_;
  ExpertUse use_;
  Watcher watcher_;
  PinnedWeights* pinned_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace tandem
