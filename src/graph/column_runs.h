// ColumnRuns: some columns of a row, or rows of a matrix, as runs of neighbours: what one device has of what several divide.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

struct ColumnRun {
  int64_t first = 0, n = 0;
  auto operator<=>(const ColumnRun&) const = default;
};
using ColumnRuns = std::vector<ColumnRun>;

inline int64_t n_columns(const ColumnRuns& runs) {
  int64_t n = 0;
  for (const ColumnRun& run : runs) n += run.n;
  return n;
}

// Adds a run behind the others; one that goes on where the last one ends becomes part of it.
inline void add_run(ColumnRuns& runs, const ColumnRun& run) {
  if (run.n == 0) return;
  if (!runs.empty() && runs.back().first + runs.back().n == run.first) {
    runs.back().n += run.n;
  } else {
    runs.push_back(run);
  }
}

}  // namespace tandem
