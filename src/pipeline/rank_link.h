// RankLink: the StageLink of a rank, whose stages follow each other in the order of ranks.
#pragma once

#include "exec/stage_link.h"
#include "ranks/ranks.h"

namespace tandem {

class RankLink final : public StageLink {
 public:
  explicit RankLink(Ranks& ranks) : ranks_(ranks) {}

  // Waits while the next rank has not taken the last kMaxOnTheWay messages, so that what is on its way takes little memory.
  void send(std::span<const std::byte> bytes) override;
  void receive(std::span<std::byte> bytes) override;

  // Since the start.
  double waited_s() const { return waited_s_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  static constexpr int kMaxOnTheWay = 4;

  Ranks& ranks_;
  int n_on_the_way_ = 0;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace tandem
