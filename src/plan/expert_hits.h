// What a store of experts is expected to have: how many of the experts that a step asks for are in memory, and the bytes
// that are read for the others.
//
// Tokens are taken to choose independently of each other, each expert with its own probability: as recorded, or by Zipf's
// law. An expert that a step uses with probability q is among those used in t steps with probability 1 - (1 - q)^t. A
// least-recently-used store holds the experts of the last t steps, where t is such that it is full (Che's approximation);
// the next step finds those of half a step less, because it has used some of its own by then.
//
// Pure functions; any thread.
#pragma once

#include <string>

#include "exec/divide_experts.h"
#include "exec/expert_room.h"
#include "exec/expert_use.h"

namespace tandem {

// Zipf's exponent where nothing is recorded. With 128 experts, the most used quarter then takes 58% of the choices.
inline constexpr double kUsualExpertSkew = 0.7;

struct ExpertHits {
  struct OfLayer {
    double n_asked = 0, n_found = 0;  // experts of a step
    double missing_bytes = 0;         // read in a step

    double share() const { return n_asked > 0 ? n_found / n_asked : 1; }
  };
  std::vector<OfLayer> layers;  // of the room

  double share() const;
  double read_bytes() const;
};

// `use` may be null: nothing is recorded. Experts that a GPU keeps, those used most, are not asked for.
ExpertHits expected_hits(const ExpertRoom& room, const ExpertUse* use, int64_t n_tokens);

// Of a layer with experts on a GPU beside the host: the experts that a step uses, and those of them that the GPU has. It
// keeps those used most (KeepsFrequent).
struct CacheHits {
  double n_asked = 0, n_found = 0;  // experts of a step
  double pairs_found =
      0;  // share of the pairs of a token and an expert, for there are more of those used most
};
CacheHits expected_cache_hits(const CachedLayer& layer, const ExpertUse* use, int64_t n_tokens);

// What expected_hits() goes by: "as recorded", "assuming Zipf's law with exponent 0.7".
std::string expert_use_text(const ExpertUse* use);

}  // namespace tandem
