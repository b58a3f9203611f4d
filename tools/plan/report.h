// What `tandem plan` has to say, as data, as a page for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "plan/session_plan.h"

namespace tandem::tools {

struct PlanReport {
  struct Tier {
    std::string name;  // "CPU", "h100"
    bool is_gpu = false;
    DeviceBytes bytes;  // on the host, weights are the mapped ones
    size_t overhead = 0;
    size_t budget = 0;  // what may be taken, overhead included; SIZE_MAX: as much as there is
    size_t total_memory = 0;
    DeviceRates rates;
    size_t total() const { return bytes.total() + overhead; }
  };
  std::string path, model;
  int64_t n_layer = 0;
  double disk_bytes_per_s = 0;                  // of what the best plan leaves on disk
  std::vector<Tier> tiers;                      // of the best plan
  std::vector<SessionPlan> plans;               // three at most, the best first
  std::vector<std::vector<size_t>> plan_bytes;  // [plan][device], without overhead
  MemoryLine line;                              // of the choice below
  OffloadChoice line_choice;                    // everything on GPUs, or what the flags say
  int64_t largest_context = 0;                  // with that choice
  int64_t largest_context_best = 0;             // with the best plan's
};

// Throws what plan_session does.
PlanReport make_plan_report(const PlanRequest& request, const std::string& path, const std::string& model);
std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);

}  // namespace tandem::tools
