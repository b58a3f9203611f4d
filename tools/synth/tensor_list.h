// Collects the tensors of one model, in file order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/synth/shapes.h"

namespace tandem::tools {

class TensorList {
 public:
  void matrix(const std::string& name, int64_t k, int64_t m, int64_t n = 1) {
    tensors_.push_back({name, TensorRole::matrix, {k, m, n, 1}, n > 1 ? 3 : 2});
  }
  void vector(const std::string& name, TensorRole role, int64_t n) {
    tensors_.push_back({name, role, {n, 1, 1, 1}, 1});
  }
  void biases(const std::string& name, int64_t n, int64_t n_expert) {
    rows(name, TensorRole::bias, n, n_expert);
  }
  void rows(const std::string& name, TensorRole role, int64_t n, int64_t n_rows) {
    tensors_.push_back({name, role, {n, n_rows, 1, 1}, 2});
  }
  void router(const std::string& name, int64_t k, int64_t n_expert) {
    tensors_.push_back({name, TensorRole::router, {k, n_expert, 1, 1}, 2});
  }
  std::vector<ShapeTensor> take() { return std::move(tensors_); }

 private:
  std::vector<ShapeTensor> tensors_;
};

}  // namespace tandem::tools
