// ExpertLoans: the experts of a store that devices are copying, the oldest first. A loan ends when the device has done what
// it was given up to the join with the copy: then the store may use the expert's slot for another one.
//
// One thread. Functions throw as Device::wait.
#pragma once

#include <deque>
#include <optional>

#include "device/device.h"
#include "exec/expert_store.h"

namespace tandem {

class ExpertLoans {
 public:
  explicit ExpertLoans(ExpertStore& store) : store_(store) {}

  // Lends an expert that is in memory, for copies by a device: all that Device::fetch returns until the next lend().
  ReadyExpert lend(Device& device, const Weight& down, int32_t expert);
  void fetches(Event fetched) { list_.back().fetched = fetched; }
  size_t size() const { return list_.size(); }
  // The device has joined the last copy of a loan.
  void joined(const Device& device, Event fetched);
  // Joins the layer's loans that were there at the last age(), which marks those that are there now.
  void join_aged(const Weight& down);
  void age(const Weight& down);
  // Ends the loans whose copies have been joined. Called when the host has had results of the device since, it seldom waits.
  void end_joined();
  // Ends the oldest loan. False: there is none.
  bool end_one();
  // After a failure: waits for all copies, and ignores errors, which have been reported.
  void end_all();

 private:
  struct Loan {
    Device* device;
    const Weight* down;
    int32_t expert;
    Event fetched = 0;
    std::optional<Event> over = {};  // once the copies have been joined
    bool is_aged = false;
  };
  void join(Loan& loan);
  void end(std::deque<Loan>::iterator loan);

  ExpertStore& store_;
  std::deque<Loan> list_;
};

}  // namespace tandem
