// A command whose model is divided over the ranks that mpirun or srun has started: each has some of its layers.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/model.h"
#include "pipeline/pipeline.h"
#include "pipeline/shares.h"
#include "tools/options/options.h"
#include "tools/rank_setup.h"

namespace tandem::tools {

struct StageOptions {
  bool mpi = false;             // --mpi
  std::vector<int64_t> layers;  // --rank-layers: of each rank; empty: by speed and memory
  bool compare_files = false;   // --compare-files: all bytes of the ranks' model files
};
void add_stage_options(CLI::App& app, StageOptions& options);

// Throws Error(usage) for options of the engine that contradict --mpi.
void check_stage_options(const EngineOptions& engine);

// The model of a rank, with the layers that it has.
class StagedModel {
 public:
  // Loads engine.model, checks that all ranks have the same one, and divides its layers. Sets in `engine` what the sessions
  // and runtimes of the ranks must have in common. All ranks call it; throws as agree() does.
  StagedModel(Ranks& ranks, const StageOptions& options, EngineOptions& engine);

  const Model& model() const { return *model_; }
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  Pipeline& pipeline() { return pipeline_; }
  // "layers 0-15 on rank 0 on node1, 16-31 on rank 1 on node2".
  std::string layers_text() const;
  // What each rank has done so far, a line each. All ranks call it.
  std::string times_text();
  // On rank 0: says every some seconds which rank takes how long for a step.
  void watch();

  // On ranks other than 0: makes the steps of rank 0 until that calls finish(). `explain`: prints the stage's placement.
  void follow(const EngineOptions& engine, bool explain);
  // --explain prints the placement of this rank's stage under its name; empty without.
  std::function<void(const std::string& table)> explain(bool wanted) const;

 private:
  void divide(const StageOptions& options, const HostShare& share, EngineOptions& engine);
  void agree_on_context(EngineOptions& engine);

  Ranks& ranks_;
  Pipeline pipeline_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Model> model_;
  std::vector<LayerRange> ranges_;  // of each rank
};

}  // namespace tandem::tools
