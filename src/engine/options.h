// All options of the engine in one struct. A program fills it in once; the engine passes references to its
// parts down to the code that reads them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/disk_reader.h"
#include "collectives/collectives.h"
#include "device/expert_source.h"
#include "exec/cache_policy.h"
#include "exec/placement.h"
#include "gguf/mapped_file.h"
#include "gguf/metadata.h"
#include "model/hparams.h"
#include "plan/cost.h"
#include "plan/options.h"

namespace tandem {

class StepRelay;

struct ModelOptions {
  std::string path;
  OpenOptions open;                         // mmap, mlock, ...
  std::vector<MetadataOverride> overrides;  // of the file's metadata
  RopeOverrides rope;
  ModelPart part = ModelPart::main;
};

// Where threads run on a machine of several memory nodes. distribute: on all, each with its rows of the weights, which are
// copied into its memory. isolate: on the node where the program started. numactl: where numactl put them. automatic:
// distribute, where several nodes and no GPU are seen, otherwise where the system puts them, as with none.
enum class Numa { automatic, none, distribute, isolate, numactl };

// For the program that creates the devices.
struct DeviceOptions {
  int32_t n_threads = -1;        // for steps of one token, -1: one per physical core
  int32_t n_threads_batch = -1;  // for longer steps, -1: as n_threads
  Numa numa = Numa::automatic;
  std::string isa;       // instruction set of the CPU's kernels, a name of cpu/isa.h; empty: the best
  bool no_gpus = false;  // use the CPU only
  std::vector<std::string> gpus;  // by name, in this order; empty: all
};

struct EngineOptions {
  ModelOptions model;
  DeviceOptions devices;
  ContextOptions context;
  OffloadOptions offload;
  // When an allocation fails, try a smaller micro-batch, then the cache on the host, then layers on the host,
  // each reported in one line, and continue the computation. false: Error(out_of_memory).
  bool oom_ladder = true;

  // Set by the program, not by its user:
  // Speeds of the devices. Empty: unknown, the planner puts as much on GPUs as fits, with n_ubatch as it is.
  std::vector<DeviceRates> rates;
  Placement placement;  // empty: planned from `offload`
  // Opens the reader of layers on disk; empty: open_disk_reader().
  std::function<std::unique_ptr<DiskReader>(std::vector<DiskFile>)> open_disk;
  // Decides which experts GPUs keep; empty: usual_cache_policy().
  MakeCachePolicy expert_policy;
  // Makes what devices do together, where layers are divided over them; empty: best_collectives().
  std::function<std::unique_ptr<Collectives>(const std::vector<Device*>&)> make_collectives;
  // Called with what a step's tokens choose in a layer, of layers whose experts are on disk or also on a GPU;
  // may be empty.
  std::function<void(const ChosenInLayer& chosen)> on_experts;
  // Of a stage (Model::keep_layers); null: the model is whole. Outlives the runtime.
  StepRelay* relay = nullptr;
};

// Throws Error(usage) for options that contradict each other, naming both.
void check_options(const EngineOptions& options);
// The same for a model that SelfExtend extends.
void check_self_extend(const SelfExtend& self_extend, const EngineOptions& options);

}  // namespace tandem
