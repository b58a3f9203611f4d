// Measures one case of `tandem bench`. Keeps the model and the devices between cases that share them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/session.h"
#include "tools/bench/report.h"

namespace tandem::tools {

struct BenchSettings {
  int32_t repetitions = 5;
  bool warmup = true;
  int32_t n_ctx = 0;  // minimum context size
  // As for run and chat, except for the parameters of a case. Options left open are chosen as they are there.
  EngineOptions engine;
  bool explain = false;
};

// Measures the memory bandwidth of all physical cores and of the first GPU; finds the names of both.
BenchMachine inspect_machine();

class BenchRunner {
 public:
  explicit BenchRunner(const BenchSettings& settings) : settings_(settings) {}

  // Calls `stage` at the start of each stage: "loading", "depth", "warm-up", "2/5". Throws what loading and
  // running a model throw, and Error(interrupted) soon after a Ctrl-C.
  using Stage = std::function<void(const std::string& name)>;
  BenchResult run(const BenchCase& c, const Stage& stage);

 private:
  void load(const BenchCase& c);
  EngineOptions options_for(const BenchCase& c) const;
  std::vector<size_t> free_memory() const;
  void run_prompt(Session& session, int64_t n_tokens);
  void run_generation(Session& session, int64_t n_tokens);
  void warm_up(Session& session, const BenchCase& c);

  BenchSettings settings_;
  std::unique_ptr<Model> model_;
  std::string model_path_;  // as named by the case
  bool model_mapped_ = false;
  int32_t n_threads_ = 0;
  std::string isa_;
  std::vector<std::unique_ptr<Device>> devices_;
  EngineOptions usual_;       // shared by all cases of this model on these devices
  std::vector<int32_t> ids_;  // random prompt tokens
};

}  // namespace tandem::tools
