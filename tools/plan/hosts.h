// `tandem plan --hosts`: a model's layers over machines that need not be there, as `tandem run --mpi` would divide them: what
// each rank has, and how fast all are together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/registry.h"
#include "engine/model.h"
#include "pipeline/shares.h"
#include "tools/plan/hosts_file.h"

namespace tandem::tools {

struct HostsRequest {
  std::vector<PlannedHost> hosts;
  std::string name, description;                 // of the model
  std::function<std::unique_ptr<Model>()> load;  // the model, as often as there are ranks
  EngineOptions engine;
  std::unique_ptr<Device> cpu;  // of this machine
  DeviceRates cpu_rates;
  std::function<KnownGpu(const std::string& name)> find_gpu;  // throws for an unknown one
  KnownGpu usual_gpu;                                         // for GPUs that are described by their memory
};

struct RankPlan {
  size_t host = 0;  // index
  LayerRange layers;
  size_t n_gpus = 0;
  SplitMode split = SplitMode::layer;       // over its GPUs
  size_t host_bytes = 0, gpu_bytes = 0;     // weights, caches and the rest
  double token_s = 0;                       // of its layers
  double prompt_token_s = 0;                // of a token of a long prompt
  double sent_bytes = 0;                    // of a token, to the next rank
  double link_s = 0, link_bytes_per_s = 1;  // to the next rank
};

struct HostsPlan {
  std::vector<RankPlan> ranks;
  ContextOptions shape;
  double token_s = 0, link_s = 0;  // of a token: all, and of that on links
  double prompt_tokens_per_s = 0;  // of a prompt that fills half of the context
  int64_t n_prompt = 0, micro_batch = 0;
};

// Throws Error(usage | out_of_memory) as divide_layers() and the planner do, naming the host.
HostsPlan plan_hosts(const HostsRequest& request);
std::string hosts_text(const HostsRequest& request, const HostsPlan& plan);
std::string hosts_json(const HostsRequest& request,
                       const HostsPlan& plan);  // sizes in bytes, times in seconds

}  // namespace tandem::tools
