// The report of `tandem plan`: as data, as text and as a picture for people, and as JSON for programs.
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
  size_t overhead = 0;                          // of the driver, on each GPU in use
  double disk_bytes_per_s = 0;                  // rate of reading weights left on disk
  std::vector<Tier> tiers;                      // of the best plan
  ExpertHits expert_hits;                       // of the best plan, in a decode step
  std::string experts;                          // the same as text; empty: no chosen experts
  KeptExperts kept_experts;                     // of the best plan, on GPUs beside the host
  std::string kept_experts_text;                // the same; empty: none
  std::string splits;                           // the ways to divide the layers over GPUs; empty: one GPU
  std::string expert_assumption;                // what both go by
  std::vector<SessionPlan> plans;               // at most three, the best first
  std::vector<std::vector<size_t>> plan_bytes;  // [plan][device], without overhead
  MemoryLine line;                              // for line_choice
  OffloadChoice line_choice;                    // everything on GPUs, or as the flags say
  // At most the training context, unless the user asked for more and that fits with all weights in memory.
  int64_t largest_context = 0;                  // with line_choice
  int64_t largest_context_best = 0;             // with the best plan's choice
  int64_t n_ctx_trained = 0, n_ctx_usable = 0;  // the second is more with SelfExtend
  int64_t n_ctx_asked = 0;    // a context that does not fit, instead of which the largest is planned; or 0
  std::string context_limit;  // what limits an automatic context; or empty

  const ContextOptions& shape() const { return plans.front().shape; }
};

// A context that does not fit is replaced by largest_possible_context(). Throws what plan_session throws if nothing
// fits.
PlanReport make_plan_report(const PlanRequest& request, const std::string& path, const std::string& model);
std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);
// What lies where in each memory, as bars.
std::string plan_svg(const PlanReport& report);

// "context 16384 tokens, what 24.00 GiB on GPU0 holds (the model was trained with 131072)".
std::string context_text(const PlanReport& report);
// "F16/F16", "F16/F16, layers 0-3=q8_0/q4_0".
std::string cache_types_text(const ContextOptions& shape);
// A unit in which all sizes of a page are written.
struct SizeUnit {
  const char* name;
  double n_bytes;
  std::string text(size_t bytes) const;
};
SizeUnit size_unit(const PlanReport& report);

}  // namespace tandem::tools
