// ExpertCounts: how many experts steps have asked an expert store for, and what had to be read for them. All zero where no
// experts are on disk.
#pragma once

#include <cstdint>

namespace tandem {

struct ExpertCounts {
  uint64_t n_used = 0;                     // experts that steps have asked for
  uint64_t n_found = 0;                    // of those, in memory or being read already
  uint64_t n_read = 0;                     // experts read, those read ahead included
  uint64_t read_bytes = 0;                 // of these
  uint64_t n_ahead = 0, n_ahead_used = 0;  // read ahead for the next layer; of those, used by it

  bool operator==(const ExpertCounts&) const = default;
};

inline ExpertCounts operator+(const ExpertCounts& a, const ExpertCounts& b) {
  return {a.n_used + b.n_used,         a.n_found + b.n_found, a.n_read + b.n_read,
          a.read_bytes + b.read_bytes, a.n_ahead + b.n_ahead, a.n_ahead_used + b.n_ahead_used};
}
// Of what happened between two counts of the same store, `before` the earlier one.
inline ExpertCounts operator-(const ExpertCounts& now, const ExpertCounts& before) {
  return {now.n_used - before.n_used,   now.n_found - before.n_found,
          now.n_read - before.n_read,   now.read_bytes - before.read_bytes,
          now.n_ahead - before.n_ahead, now.n_ahead_used - before.n_ahead_used};
}

}  // namespace tandem
