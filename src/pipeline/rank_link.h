// RankLink: the StageLink of a rank, whose stages follow each other in the order of ranks. With every answer to activations
// come the times of the ranks behind.
#pragma once

#include <vector>

#include "exec/stage_link.h"
#include "pipeline/stage_times.h"
#include "ranks/ranks.h"

namespace tandem {

class RankLink final : public StageLink {
 public:
  explicit RankLink(Ranks& ranks);

  // Waits while the next rank has not taken the last kMaxOnTheWay messages, so that what is on its way takes little memory.
  void send(std::span<const std::byte> bytes) override;
  void receive(std::span<std::byte> bytes) override;

  // What this rank has done, for the ranks before it; with what it knows of this and all later ranks. [ranks]
  void set_times(const StageTimes& times);
  const std::vector<StageTimes>& all_times() const { return times_; }

  // Since the start.
  double waited_s() const { return waited_s_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  static constexpr int kMaxOnTheWay = 4;

  // Of this rank and those behind it.
  std::span<StageTimes> times_from(int rank) { return std::span(times_).subspan(static_cast<size_t>(rank)); }

  Ranks& ranks_;
  std::vector<StageTimes> times_;
  int n_on_the_way_ = 0;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace tandem
