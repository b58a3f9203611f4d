// What a stage has done, and how it reads while the ranks compute: so that a slow one is seen at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/stage.h"
#include "ranks/ranks.h"

namespace tandem {

// Without what it waited for others. Also sent between ranks, as it lies in memory.
struct StageTimes {
  int64_t n_prompt_tokens = 0, n_prompt_steps = 0,
          n_single_steps = 0;         // single: of a token, or one with guesses
  double prompt_s = 0, single_s = 0;  // computing
  double waited_s = 0;
  uint64_t sent_bytes = 0;  // activations

  // What came since then.
  StageTimes since(const StageTimes& before) const;
};

// "rank 1 on node7: layers 8 to 15; prompt 12.1 ms a token, in steps of 96; 5.02 ms a step of single tokens; waited ...", a
// line each.
std::string stage_table(const Ranks& ranks, std::span<const LayerRange> layers,
                        std::span<const StageTimes> times);
// "rank 0 on node1 3.10 ms a step, rank 1 on node7 9.42 ms (the slowest)", of those that have made steps; of prompts, the time
// of a token. Empty if no rank has.
std::string live_text(const Ranks& ranks, std::span<const StageTimes> times);

}  // namespace tandem
