// Fits a session into the devices' memory. Chooses what the user left open for the shortest predicted time,
// or, if the speed of the devices is unknown, for the most layers on GPUs; keeps what the user set. Throws
// Error(out_of_memory) with the bytes needed, the bytes available, and settings that would fit;
// Error(usage) for options that contradict each other.
#pragma once

#include "plan/cost.h"
#include "plan/expert_hits.h"
#include "plan/footprint.h"
#include "plan/offload.h"

namespace tandem {

// A session except its placement. Everything outlives the call.
class KnownFits;

struct FitRequest {
  const Architecture& architecture;
  const std::deque<Weight>& weights;
  DeviceModels devices;
  const OffloadOptions& options;
  const KvConfig& kv;
  const std::vector<const Graph*>& graphs;  // the decode graph first, then the prefill graph
  std::span<const DeviceRates> rates = {};  // of the devices; empty: not known
  // The choices to try, with any number of layers on GPUs; empty: all that the options leave open.
  std::span<const OffloadChoice> choices = {};
  bool may_leave_on_disk = true;  // false: all weights are in memory, read or locked
  KnownFits* known = nullptr;     // where fit_with() looks first, and remembers; of this request alone
};

struct Fit {
  OffloadChoice choice;
  Placement placement;
  Footprint bytes;
  Prediction speed;  // zeros if the rates are unknown
  // Ops that a device does not support and the host runs instead: "12 x attention on GPU0: reason".
  std::vector<std::string> fallbacks;
};

// Seconds by which fits are compared, whole layers on each GPU preferred unless another division is faster by more than
// predictions are sure of.
double compared_seconds(const Fit& fit);

// Returns the best fit. Keeps budgets.vram_overhead free on GPUs if the user left the number of layers
// open.
Fit fit(const FitRequest& request);
// Returns a fit for each open choice, with as many layers on GPUs as fit, the fastest first. Empty if none
// fits.
std::vector<Fit> all_fits(const FitRequest& request);
// Returns all choices that the options leave open.
std::vector<OffloadChoice> open_choices(const FitRequest& request);
// Returns the fit of exactly this choice, even if it is too large.
Fit fit_with(const FitRequest& request, const OffloadChoice& choice);

// Returns the placement of a choice; ops that a device does not support go to the host, `reasons` as in
// Fit::fallbacks.
Placement placement_of(const FitRequest& request, const OffloadChoice& choice,
                       std::vector<std::string>* reasons = nullptr);
// The steps that predictions are for, and the seconds of one. Need the rates of the devices.
StepLoad decode_load(const FitRequest& request);
StepLoad prefill_load(const FitRequest& request);
double step_seconds(const FitRequest& request, const Placement& placement, const Graph& graph, StepLoad load);

// Returns the memory of the host: what the user allows, which may be another machine's, or what there is.
size_t host_memory(const DeviceModels& devices, const Budgets& budgets);
// Returns the host memory that may be taken before layers are left on disk: what the user allows, or what is free
// less a reserve.
size_t ram_before_disk(const FitRequest& request);
// Returns the bytes that may be allocated on a device. Only budgets.max_ram limits host memory, because the
// system may overcommit it.
size_t device_budget(const FitRequest& request, size_t device);
// Returns the bytes that a fit needs on a device; on the host they include mapped weights.
size_t device_needs(const Fit& fit, size_t device);

// Returns what the store of chosen experts is expected to do in a decode step; one that asks for none if there is none.
ExpertHits expected_hits(const FitRequest& request, const Placement& placement);
// Returns it as text: "1.50 GiB of memory hold 700 of 6144 experts; decoding finds 63% there, assuming ..., and reads
// 410.0 MiB a step". Empty if there is none.
std::string experts_text(const FitRequest& request, const Fit& fit);
// Returns what a decode step uses of the layers of which GPUs keep experts beside the host, and finds there.
struct KeptExperts {
  int64_t n_slots = 0, n_experts = 0;  // of these layers
  double n_asked = 0, n_found = 0;     // experts of a step
  double fetched = 0;                  // of the others, the share that is brought for the step

  double share() const { return n_asked > 0 ? n_found / n_asked : 0; }
};
KeptExperts kept_experts(const FitRequest& request, const Placement& placement);
// Returns the same as text: "512 of 6144 experts; decoding finds 40% there, ...". Empty if there are none.
std::string cached_experts_text(const FitRequest& request, const Fit& fit);
// Returns what each way to divide the layers over GPUs would be, this one first: "tensor 81.2 t/s decoding, 2104 t/s for
// prompts (GPU0 131072 bytes a token, GPU1 131072); layer ...; none: does not fit". Empty without several GPUs, or if the rates are
// unknown.
std::string split_text(const FitRequest& request, const Fit& fit);
// Returns the table of --explain: the placement, its bytes, the bytes over the bus per token, and the
// predicted speed.
std::string explain(const FitRequest& request, const Fit& fit);
// Returns the same in one line: "GPU0: 48 of 80 layers and the output (23.7 GiB); 32 streamed there, ...;
// predicted ...". Empty without GPUs.
std::string summary(const DeviceModels& devices, const Fit& fit);

}  // namespace tandem
