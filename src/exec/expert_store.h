// ExpertStore: a cache of experts in host memory, for layers whose experts are on disk. Reads the missing experts of a
// step, several at a time and past the page cache, while the CPU computes with those that it has. When it is full, the
// expert goes whose last use is longest ago; none goes that the step still needs.
//
// A step of many tokens uses nearly all experts of a layer. They pass through few slots, so the rest of the store keeps
// what it has, and those of the next layer are read ahead. A step of few tokens reads ahead those that the next layer's
// router would choose for this layer's input, which is much like its own.
//
// A GPU's cache of the same layers' experts borrows those that it copies; a borrowed expert stays until it is given back.
//
// Owns the slots. One thread; after a failed read, check() throws Error(io) and forget() must follow.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "base/disk_reader.h"
#include "device/device.h"
#include "device/expert_source.h"
#include "exec/eviction_order.h"
#include "exec/expert_counts.h"
#include "exec/expert_guess.h"
#include "exec/expert_room.h"
#include "exec/expert_use.h"

namespace tandem {

// What else has experts of the store's layers, and borrows them from it.
class ExpertBorrower {
 public:
  // Whether it has the expert, which then need not be read ahead.
  virtual bool has(const Weight& down, int32_t expert) const = 0;
  // Gives back what it borrowed longest ago, when the copy is complete. False: there is nothing.
  virtual bool give_back_one() = 0;

 protected:
  ~ExpertBorrower() = default;
};

class ExpertStore final : public ExpertSource {
 public:
  // `reader` may be null if nothing is ever reserved. Both outlive the store.
  ExpertStore(Device& host, DiskReader* reader);
  ~ExpertStore() override;
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Allocates the slots. Once; later calls must bring no other layers. Throws Error(out_of_memory).
  void reserve(ExpertRoom room);
  size_t n_bytes() const { return room_.n_bytes(); }
  const ExpertRoom& room() const { return room_; }
  const ExpertCounts& counts() const { return counts_; }  // since the store was made
  const ExpertUse& use() const { return use_; }           // since the store was made
  // Calls fn at every request, or else at tell_chosen().
  using Watcher = std::function<void(const ChosenInLayer& chosen)>;
  void watch(Watcher fn) { watcher_ = std::move(fn); }
  // Starts reading the experts that are used most: some at once, the others beside the steps that follow, until the store
  // is full. For a store that has nothing yet.
  void read_most_used(const ExpertUse& use);

  bool has(const Weight& down) const override { return layer_with(down) < layers_.size(); }
  void request(const ExpertRequest& request) override;
  std::span<const ReadyExpert> next() override;
  bool failed() const override { return error_ != nullptr; }

  // For a cache that has experts of these layers too; it outlives all requests.
  void set_borrower(ExpertBorrower* borrower) { borrower_ = borrower; }
  size_t n_slots(const Weight& down) const { return layers_[layer_with(down)].pool->slots.size(); }
  // Whether the expert is in memory or being read; and whether it is there completely.
  bool has_slot(const Weight& down, int32_t expert) const;
  bool is_in_memory(const Weight& down, int32_t expert);
  // Starts reading an expert that is not in memory, unless everything there is in use. Throws Error(io).
  void start(const Weight& down, int32_t expert);
  // Waits for the expert if it is being read, and lends it: it stays where it is until take_back(). Nothing if it is not
  // there. Throws Error(io).
  std::optional<ReadyExpert> lend(const Weight& down, int32_t expert);
  // Where the rows of a lent expert of one of the layer's matrices are; null for another weight.
  const std::byte* rows_in(const ReadyExpert& lent, const Weight& down, const Weight& matrix) const;
  // The copy of a lent expert needs its slot no longer: if memory is short, it goes first.
  void take_back(const Weight& down, int32_t expert);
  // Tells the watcher what a step's tokens have chosen. The request that follows is for some of these.
  void tell_chosen(const ExpertRequest& all);

  void check() const;  // throws the error of a failed read
  // After a failed step: waits for all reads to end, and forgets the error and what failed to be read.
  void forget();

 private:
  struct Slot {
    std::byte* base = nullptr;
    std::optional<DiskReader::Ticket> under_way;
    size_t layer = 0;       // whose expert it has; index into room_.layers
    int32_t expert = -1;    // none: -1
    bool in_use = false;    // by the request
    int n_loans = 0;        // to the borrower
    bool is_ahead = false;  // the next layer is expected to ask for it,
    bool is_guess = false;  // and it was read for that
  };
  struct Expert {
    size_t layer;
    int32_t expert;
  };
  struct Pool {
    std::byte* base = nullptr;
    size_t slot_bytes = 0;
    std::vector<Slot> slots;
    size_t n_filled = 0;  // of the slots, those before have had an expert
    EvictionOrder order;
  };
  struct Layer {
    Pool* pool = nullptr;
    std::vector<int32_t> slot_of;  // [expert] -1: not in memory
  };

  template <class Fn>
  void guarded(const Fn& fn);
  void begin(const ExpertRequest& request);
  void collect();
  size_t layer_with(const Weight& down) const;
  Slot& slot_of(size_t layer, int32_t expert);
  bool bring(size_t layer, int32_t expert);
  void start_reading(Slot& slot);
  void start_waiting();
  void read_ahead();
  void read_ahead(std::span<const int32_t> experts);
  void predict();
  void tell(size_t layer, const ExpertRequest& chosen);
  std::span<const int32_t> guess_after(size_t layer, const ExpertRequest& request, int64_t n);
  void end_reading_ahead();
  bool end_a_read();
  void release_returned();
  void collect_done();
  bool finish(Slot& slot);
  void discard(Slot& slot);
  void drop(Slot& slot);
  void read_more_of_most_used(size_t n_under_way);
  ReadyExpert in_slot(const Slot& slot) const;
  bool is_elsewhere(size_t layer, int32_t expert) const;

  Device& host_;
  DiskReader* reader_;
  ExpertRoom room_;
  std::vector<Pool> pools_;
  std::vector<Layer> layers_;      // of room_.layers
  std::vector<DiskRead> reads_;    // of one expert
  std::vector<Slot*> ahead_;       // for the next layer
  std::vector<Expert> most_used_;  // still to be read, the one used most last
  std::vector<Slot*> warming_;     // being read of those

  // Of the request; indices into its experts.
  ExpertRequest request_;
  size_t layer_ = 0;
  bool passes_through_ = false;     // many tokens
  std::vector<size_t> waiting_;     // for a slot
  std::vector<size_t> pending_;     // in a slot, perhaps not read yet
  std::vector<ReadyExpert> ready_;  // returned last
  std::exception_ptr error_;
  std::vector<int32_t> all_of_next_;  // experts of the next layer
  ExpertGuesser guesser_;
  ExpertCounts counts_;
  ExpertUse use_;
  Watcher watcher_;
  bool was_told_ = false;  // of the request that comes next
  ExpertBorrower* borrower_ = nullptr;
};

}  // namespace tandem
