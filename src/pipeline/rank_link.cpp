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

void RankLink::send(std::span<const std::byte> bytes) {
  const int next = ranks_.rank() + 1;
  if (n_on_the_way_ == kMaxOnTheWay) {
    const AddSeconds timer(waited_s_);
    ranks_.receive_into(next, kTakenTag, {});
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
  ranks_.send(before, kTakenTag, {});
}

}  // namespace tandem
