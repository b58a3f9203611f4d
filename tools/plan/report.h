// The report of `tandem plan`: as data, as text for people, and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "plan/session_plan.h"

namespace tandem::tools {

struct PlanReport {
  struct Tier {
    std::string name;  // "CPU", "h100"
    bool is_gpu = false;
    DeviceBytes bytes;  // on the host, weights include the mapped ones
    size_t overhead = 0;
    size_t budget = 0;  // limit, including the overhead; SIZE_MAX: no limit
    size_t total_memory = 0;
    DeviceRates rates;
    size_t total() const { return bytes.total() + overhead; }
  };
  std::string path, model;
  int64_t n_layer = 0;
  double disk_bytes_per_s = 0;                  // rate of reading weights left on disk
  std::vector<Tier> tiers;                      // of the best plan
  std::vector<SessionPlan> plans;               // at most three, the best first
  std::vector<std::vector<size_t>> plan_bytes;  // [plan][device], without overhead
  MemoryLine line;                              // for line_choice
  OffloadChoice line_choice;                    // everything on GPUs, or as the flags say
  int64_t largest_context = 0;                  // with line_choice
  int64_t largest_context_best = 0;             // with the best plan's choice
};

// Throws what plan_session throws.
PlanReport make_plan_report(const PlanRequest& request, const std::string& path, const std::string& model);
std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);

}  // namespace tandem::tools
