// Fitting a session into the devices' memory: how many layers go to the GPUs when the user leaves it open,
// and what would fit when what was asked for does not.
#pragma once

#include <functional>

#include "plan/footprint.h"
#include "plan/offload.h"

namespace tandem {

// What a session is made of, apart from its placement. All outlive the call.
struct FitRequest {
  const Architecture& architecture;
  const std::deque<Weight>& weights;
  const std::vector<Device*>& devices;
  const OffloadFlags& flags;
  const KvConfig& kv;
  const std::vector<const Graph*>& graphs;  // the decode graph first
};

struct Fit {
  int64_t n_gpu_layers = 0;
  Placement placement;
  Footprint bytes;
  // What was to run on a device that cannot, and so runs on the host: "12 x attention on CUDA0: reason".
  std::vector<std::string> fallbacks;
};

// With flags.n_gpu_layers set: exactly that, or Error(out_of_memory) that says what is needed, what is free,
// and which -ngl, -c or cache types would fit. Not set: the most layers that fit beside kReserve free bytes
// on every GPU.
inline constexpr size_t kReserve = size_t{256} << 20;
Fit fit(const FitRequest& request);

// The table of --explain: where everything lives, its bytes, and what crosses the bus for a token.
std::string explain(const FitRequest& request, const Fit& fit);

}  // namespace tandem
