// Fitting a session into the devices' memory: what the user left open is filled in so that the predicted time
// is the shortest, or, where nobody knows how fast the devices are, so that most layers are on GPUs. What the
// user set is kept. Throws Error(out_of_memory) that says what is needed, what there is, and what would fit;
// Error(usage) for options that contradict each other.
#pragma once

#include "plan/cost.h"
#include "plan/footprint.h"
#include "plan/offload.h"

namespace tandem {

// What a session is made of, apart from its placement. All outlive the call.
struct FitRequest {
  const Architecture& architecture;
  const std::deque<Weight>& weights;
  DeviceModels devices;
  const OffloadOptions& options;
  const KvConfig& kv;
  const std::vector<const Graph*>& graphs;  // the decode graph first, then the prefill graph
  std::span<const DeviceRates> rates = {};  // of the devices; empty: not known
  // To try, with any number of layers on GPUs; empty: all that is open.
  std::span<const OffloadChoice> choices = {};
  bool may_leave_on_disk = true;  // false: all weights are in memory, read or locked
};

struct Fit {
  OffloadChoice choice;
  Placement placement;
  Footprint bytes;
  Prediction speed;  // zeros where the rates are not known
  // What was to run on a device that cannot, and so runs on the host: "12 x attention on GPU0: reason".
  std::vector<std::string> fallbacks;
};

// The best fit. GPUs whose number of layers the user left open keep budgets.vram_overhead free.
Fit fit(const FitRequest& request);
// Every way to fill in what is open, each with as many layers on GPUs as fit, the fastest first. Empty when
// none fits.
std::vector<Fit> all_fits(const FitRequest& request);
// With exactly this choice, whether it fits or not.
Fit fit_with(const FitRequest& request, const OffloadChoice& choice);

// Where a choice puts everything, with what a device cannot run on the host; `reasons` as Fit::fallbacks.
Placement placement_of(const FitRequest& request, const OffloadChoice& choice,
                       std::vector<std::string>* reasons = nullptr);
// The steps that predictions are made for, and how long one takes. Needs the rates of the devices.
StepLoad decode_load(const FitRequest& request);
StepLoad prefill_load(const FitRequest& request);
double step_seconds(const FitRequest& request, const Placement& placement, const Graph& graph, StepLoad load);

// Bytes that may be allocated on a device. Host memory is limited by budgets.max_ram only: what is free there
// is for the system to judge, which may overcommit it.
size_t device_budget(const FitRequest& request, size_t device);
// Bytes that a fit needs on a device; on the host, mapped weights included.
size_t device_needs(const Fit& fit, size_t device);

// The table of --explain: where everything lives, its bytes, what crosses the bus for a token, and how fast
// it will be.
std::string explain(const FitRequest& request, const Fit& fit);
// The same in a line: "GPU0: 48 of 80 layers and the output (23.7 GiB); 32 streamed there, ...; predicted
// ...". Empty without GPUs.
std::string summary(const DeviceModels& devices, const Fit& fit);

}  // namespace tandem
