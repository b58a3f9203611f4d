// How fast GPUs add without the host: measured with the library that will do it.
#pragma once

#include <span>
#include <vector>

#include "collectives/collectives.h"
#include "plan/rates_cache.h"

namespace tandem {

struct PeerRates {
  double seconds = 0;      // of the shortest sum
  double bytes_per_s = 0;  // as DeviceRates::peer_bytes_per_s
};
// Takes some milliseconds, and memory on each device that it frees. Throws what the devices and the library throw.
PeerRates measure_peers(Collectives& collectives, std::span<Device* const> devices);

// Sets the peer rates of the GPUs where NCCL adds for two or more of them; measures what is not in the cache. rates:
// [device], the host first.
void add_peer_rates(std::span<Device* const> devices, const RatesCache& cache,
                    std::vector<DeviceRates>& rates);

}  // namespace tandem
