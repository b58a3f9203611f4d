// Observer that computes an importance matrix: sums the squares of the inputs of a model's weight matrices.
// Memory: one float per column of each matrix (and expert), allocated at the start.
//
// Call observe() from one thread at a time; read sums() between steps.
#pragma once

#include <deque>

#include "cpu/observer.h"
#include "tools/imatrix/imatrix_file.h"

namespace tandem::tools {

enum class OutputTensor { skip, include };

class ImportanceCollector {
 public:
  // Observes the matrices of the layers, and output.weight if included. `before` holds the sums of earlier
  // runs. Throws Error(bad_file) if they are of another model.
  ImportanceCollector(const std::deque<Weight>& weights, OutputTensor output, ImportanceSums before = {});

  void observe(const cpu::ProductInput& input);

  // Returns all sums so far, without matrices that no token reached.
  ImportanceSums sums() const;
  // Throws Error(numeric) with the first matrix whose inputs were not finite.
  void check_finite() const;

 private:
  ImportanceSums sums_;
};

}  // namespace tandem::tools
