// ExpertUse: how often a workload has used each expert of a model.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace tandem {

struct ExpertUse {
  // By layer: [expert] pairs of a token and this expert that it has chosen.
  std::map<int, std::vector<uint64_t>> counts;
};

}  // namespace tandem
