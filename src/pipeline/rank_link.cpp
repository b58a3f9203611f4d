#include "pipeline/rank_link.h"

#include <chrono>

#include "pipeline/tags.h"

namespace tandem {
namespace {

class AddSeconds {
 public:
  explicit AddSeconds(double& sum) : sum_(sum) {}
  ~AddSeconds() { sum_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  AddSeconds(const AddSeconds&) = delete;
  AddSeconds& operator=(const AddSeconds&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sum_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

RankLink::RankLink(Ranks& ranks) : ranks_(ranks), times_(static_cast<size_t>(ranks.size())) {}

void RankLink::set_times(const StageTimes& times) {
  times_[static_cast<size_t>(ranks_.rank())] = times;
}

void RankLink::send(std::span<const std::byte> bytes) {
  const int next = ranks_.rank() + 1;
  if (n_on_the_way_ == kMaxOnTheWay) {
    const AddSeconds timer(waited_s_);
    ranks_.receive_into(next, kTakenTag, std::as_writable_bytes(times_from(next)));
    --n_on_the_way_;
  }
  ranks_.send(next, kActivationsTag, bytes);
  ++n_on_the_way_;
  sent_bytes_ += bytes.size();
}

void RankLink::receive(std::span<std::byte> bytes) {
  const int before = ranks_.rank() - 1;
  {
    const AddSeconds timer(waited_s_);
    ranks_.receive_into(before, kActivationsTag, bytes);
  }
  ranks_.send(before, kTakenTag, std::as_bytes(times_from(ranks_.rank())));
}

}  // namespace tandem
