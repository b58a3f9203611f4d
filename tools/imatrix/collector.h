// Sums up the squares of what a model's weight matrices are multiplied by: the observer that makes an
// importance matrix. Memory: a float for each column of each matrix (and expert), taken at the start.
//
// observe() is for one thread at a time; read sums() between steps.
#pragma once

#include <deque>

#include "cpu/observer.h"
#include "tools/imatrix/imatrix_file.h"

namespace tandem::tools {

enum class OutputTensor { skip, include };

class ImportanceCollector {
 public:
  // The matrices of the blocks, and output.weight if it is to be included. `before` is what earlier runs saw.
  // Throws Error(bad_file) when that is of another model.
  ImportanceCollector(const std::deque<Weight>& weights, OutputTensor output, ImportanceSums before = {});

  void observe(const cpu::ProductInput& input);

  // Of all that was seen; matrices that nothing has reached are not in it.
  ImportanceSums sums() const;
  // Throws Error(numeric) naming the first matrix whose inputs were not finite.
  void check_finite() const;

 private:
  ImportanceSums sums_;
};

}  // namespace tandem::tools
