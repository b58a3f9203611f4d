// ExpertCounts: how many experts steps have asked for in layers whose experts are on disk or also on a GPU, and what had to
// be read or brought for them. All zero where there are no such layers.
#pragma once

#include <cstdint>

namespace tandem {

// Of layers with experts on a GPU beside the host.
struct ExpertCacheCounts {
  uint64_t n_used = 0;         // experts that steps have asked for
  uint64_t n_found = 0;        // of those, on the GPU
  uint64_t n_fetched = 0;      // brought there for the step
  uint64_t n_kept = 0;         // brought there for later
  uint64_t fetched_bytes = 0;  // of both

  bool operator==(const ExpertCacheCounts&) const = default;
};

struct ExpertCounts {
  uint64_t n_used = 0;                     // experts that steps have asked for, of those on disk
  uint64_t n_found = 0;                    // of those, in memory or being read already
  uint64_t n_read = 0;                     // experts read, those read ahead included
  uint64_t read_bytes = 0;                 // of these
  uint64_t n_ahead = 0, n_ahead_used = 0;  // read ahead for the next layer; of those, used by it
  ExpertCacheCounts on_gpus = {};

  bool operator==(const ExpertCounts&) const = default;
};

// Calls f(a field of x, the same of y) for every field.
template <class F>
void for_each_count(ExpertCounts& x, const ExpertCounts& y, F f) {
  for (const auto field : {&ExpertCounts::n_used, &ExpertCounts::n_found, &ExpertCounts::n_read,
                           &ExpertCounts::read_bytes, &ExpertCounts::n_ahead, &ExpertCounts::n_ahead_used})
    f(x.*field, y.*field);
  for (const auto field :
       {&ExpertCacheCounts::n_used, &ExpertCacheCounts::n_found, &ExpertCacheCounts::n_fetched,
        &ExpertCacheCounts::n_kept, &ExpertCacheCounts::fetched_bytes})
    f(x.on_gpus.*field, y.on_gpus.*field);
}

inline ExpertCounts operator+(ExpertCounts a, const ExpertCounts& b) {
  for_each_count(a, b, [](uint64_t& x, uint64_t y) { x += y; });
  return a;
}
// Of what happened between two counts of the same stores, `before` the earlier one.
inline ExpertCounts operator-(ExpertCounts now, const ExpertCounts& before) {
  for_each_count(now, before, [](uint64_t& x, uint64_t y) { x -= y; });
  return now;
}

}  // namespace tandem
