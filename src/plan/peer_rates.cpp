#include "plan/peer_rates.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"

namespace tandem {
namespace {

constexpr size_t kSmall = 1024, kLarge = size_t{4} << 20;  // numbers of a summand

// A summand on each device, which the sum replaces.
class Summands {
 public:
  explicit Summands(std::span<Device* const> devices) {
    const std::vector<float> zeros(kLarge, 0.0f);
    for (Device* device : devices) {
      parts_.push_back({device, device->alloc(kLarge * sizeof(float)), nullptr, 0});
      device->copy_in(parts_.back().in, zeros.data(), kLarge * sizeof(float));
      device->wait(device->record());
    }
  }
  ~Summands() {
    for (const CollectivePart& p : parts_) p.device->free(p.in);
  }
  Summands(const Summands&) = delete;
  Summands& operator=(const Summands&) = delete;

  // The shortest of some sums of n numbers, until all devices have it.
  double seconds(Collectives& collectives, size_t n) {
    constexpr int kTimes = 5;
    for (CollectivePart& p : parts_) {
      p.out = p.in;
      p.n_cols = n;
    }
    double best = 0;
    for (int i = 0; i < kTimes; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      collectives.all_reduce(parts_, 1);
      for (const CollectivePart& p : parts_) collectives.wait(*p.device, p.device->record(), "all_reduce");
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      best = i == 0 ? s : std::min(best, s);
    }
    return best;
  }

 private:
  std::vector<CollectivePart> parts_;
};

bool is_cuda(Device& device) {
  const std::optional<NativeQueue> queue = device.native_queue();
  return queue && queue->api == NativeQueue::Api::cuda;
}

}  // namespace

PeerRates measure_peers(Collectives& collectives, std::span<Device* const> devices) {
  Summands summands(devices);
  const double small = summands.seconds(collectives, kSmall), large = summands.seconds(collectives, kLarge);
  const auto n = static_cast<double>(devices.size());
  const double each = std::max(large - small, 0.1 * large);
  return {small, 2 * (n - 1) / n * static_cast<double>((kLarge - kSmall) * sizeof(float)) / each};
}

void add_peer_rates(std::span<Device* const> devices, const RatesCache& cache,
                    std::vector<DeviceRates>& rates) {
  std::vector<Device*> gpus;
  std::string name = "sums over";
  for (size_t d = 1; d < devices.size(); ++d) {
    if (!is_cuda(*devices[d])) continue;
    gpus.push_back(devices[d]);
    name += (gpus.size() > 1 ? ", " : " ") + devices[d]->info().name + ": " + devices[d]->info().description;
  }
  if (gpus.size() < 2) return;
  std::optional<DeviceRates> known = cache.find(name);
  if (!known) {
    try {
      const PeerRates peers = measure_peers(*make_nccl_collectives(gpus), gpus);
      known = rates[1];
      known->peer_bytes_per_s = peers.bytes_per_s;
      known->peer_s = peers.seconds;
      cache.remember(name, *known, Measured::quietly);
    } catch (const Error& e) {
      log_verbose("sums over GPUs are not measured: {}", e.message());
      return;
    }
  }
  for (size_t d = 1; d < devices.size(); ++d) {
    if (!is_cuda(*devices[d])) continue;
    rates[d].peer_bytes_per_s = known->peer_bytes_per_s;
    rates[d].peer_s = known->peer_s;
  }
}

}  // namespace tandem
