// Recording of the experts that a mixture uses, where they are on disk.
//
// --expert-stats FILE: which experts of a mixture a workload uses. A run adds what it has used to the file; the next one
// starts with the experts in memory that are used most, and plans with how they are used. The file is JSON, about
// 5 bytes for each expert.
//
// --expert-trace FILE: every choice of experts, for scripts/expert_report.py. A line of JSON about the model, then a line
// for each step and layer: the layer, then EXPERT:TOKENS for each expert, the number of the step's tokens that chose it. In
// steps of few tokens, ">" and the experts follow that the next layer's router would choose for this layer's input.
//
// Throws Error(bad_file | io) naming the file, and Error(usage) for the statistics of another model.
#pragma once

#include <string>

#include "base/output_file.h"
#include "engine/options.h"
#include "exec/executor.h"
#include "exec/expert_use.h"
#include "tools/options/command_line.h"

namespace tandem::tools {

void add_expert_stats_option(CLI::App& command, std::string& path);
void add_expert_trace_option(CLI::App& command, std::string& path);

// Nothing for a file that does not exist or is empty.
ExpertUse read_expert_stats(const std::string& path, const Hparams& model);
void write_expert_stats(const std::string& path, const Hparams& model, const ExpertUse& use);

class ExpertTrace {
 public:
  // Nothing if the path is empty. Otherwise sets options.on_experts, which refers to this object.
  ExpertTrace(const std::string& path, const Hparams& model, EngineOptions& options);
  void publish();  // gives the file its name

 private:
  void add(const ChosenInLayer& chosen);

  std::unique_ptr<OutputFile> file_;
  std::string line_;
};

class ExpertStats {
 public:
  // Reads the file, unless the path is empty, and sets options.offload.expert_use.
  ExpertStats(const std::string& path, const Hparams& model, EngineOptions& options);
  // Writes the file with what the executor has used since it was made. Nothing without a path, or if all experts were in
  // memory.
  void save(const Executor& executor) const;

 private:
  std::string path_;
  Hparams model_;
  ExpertUse before_;
};

}  // namespace tandem::tools
