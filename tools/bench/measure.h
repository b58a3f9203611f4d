// Measuring one case of `tandem bench`. Keeps model and devices from case to case as long as they fit.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/session.h"
#include "tools/bench/report.h"
#include "tools/options/offload.h"

namespace tandem::tools {

struct BenchSettings {
  int32_t repetitions = 5;
  bool warmup = true;
  int32_t n_ctx = 0;  // room in the cache, where a test needs less
  // As for run and chat, but for what cases have values of: what they leave open is chosen as it is there.
  OffloadOptions offload;
  bool ubatch_given = false, cache_type_given = false;
};

// The bandwidth of the memory, over all physical cores, and the name of the CPU.
BenchMachine inspect_machine();

class BenchRunner {
 public:
  explicit BenchRunner(const BenchSettings& settings) : settings_(settings) {}

  // `stage` is told what begins: "loading", "depth", "warm-up", "2/5".
  // Throws what loading a model and running it throw, and Error(interrupted) soon after a Ctrl-C.
  using Stage = std::function<void(const std::string& name)>;
  BenchResult run(const BenchCase& c, const Stage& stage);

 private:
  void load(const BenchCase& c);
  SessionOptions session_for(const BenchCase& c) const;
  std::vector<size_t> free_memory() const;
  void run_prompt(Session& session, int64_t n_tokens);
  void run_generation(Session& session, int64_t n_tokens);

  BenchSettings settings_;
  std::unique_ptr<Model> model_;
  std::string model_path_;  // as the case names it
  bool model_mapped_ = false;
  OffloadOptions offload_;  // for this model
  int32_t n_threads_ = 0;
  std::vector<std::unique_ptr<Device>> devices_;
  SessionOptions usual_;      // what all cases on these devices have
  std::vector<int32_t> ids_;  // what a prompt is made of
};

}  // namespace tandem::tools
