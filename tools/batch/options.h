// The options of `tandem batch`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sample/params.h"
#include "tools/batch/shard.h"
#include "tools/kv_store.h"
#include "tools/options/options.h"

namespace tandem::tools {

struct BatchOptions : CommandOptions {
  bool sandbox = true;
  SamplerParams sampling;
  KvStoreOptions kv_store;
  TextOptions text;  // -n, -r, -e
  std::string input = "-", output = "-", chat_template, expert_stats;
  int32_t parallel = 8, ctx_sequence = 0;
  std::optional<Shard> shard;  // nothing: that of a Slurm job array, else the whole input
  bool merge = false, mpi = false;
};

// For messages.
std::string input_name(const BatchOptions& options);

}  // namespace tandem::tools
