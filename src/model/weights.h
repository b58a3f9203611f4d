// WeightBinder: finds the tensors that an architecture needs, checks their shapes and dtypes, and keeps them
// as Weights that graphs refer to. Throws Error(bad_file) with the file and the tensor.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "gguf/file.h"
#include "graph/tensor.h"

namespace tandem {

class WeightBinder {
 public:
  explicit WeightBinder(const GgufFile& file) : file_(file) {}
  WeightBinder(const WeightBinder&) = delete;
  WeightBinder& operator=(const WeightBinder&) = delete;

  // Sets the layer of the following weights, named "blk.LAYER.NAME"; -1 for weights outside of layers.
  void set_layer(int layer) { set_layer(layer, layer); }
  // The same for weights whose names have another number, or none if that is -1.
  void set_layer(int layer, int in_names) {
    layer_ = layer;
    layer_in_names_ = in_names;
  }

  // A matrix [n_rows, n_cols] of any dtype that can be read; kAnySize accepts the file's size.
  static constexpr int64_t kAnySize = -1;
  const Weight* matrix(const std::string& name, int64_t n_rows, int64_t n_cols);
  // A vector of n floats. F16 and BF16 are converted to F32, for the kernels.
  const Weight* vector(const std::string& name, int64_t n);
  // The same, also if it is stored as n rows of one.
  const Weight* vector_or_column(const std::string& name, int64_t n);
  // The same with every element multiplied by `factor`.
  const Weight* scaled_vector(const std::string& name, int64_t n, float factor);
  // n ones, for a norm without a weight. Not from the file.
  const Weight* ones(int64_t n);
  // Matrices [n_rows, n_cols], one for each of n_mats experts.
  const Weight* experts(const std::string& name, int64_t n_mats, int64_t n_rows, int64_t n_cols);
  // A range of rows of a fused matrix, as a weight of its own under the tensor's name.
  struct Rows {
    int64_t n_total, first, n;
  };
  const Weight* rows_of(const std::string& name, const Rows& rows, int64_t n_cols);
  // The same for a vector; nullptr if the file has no such tensor.
  const Weight* optional_rows_of(const std::string& name, const Rows& rows);

  bool has(const std::string& name) const { return file_.find_tensor(full_name(name)) != nullptr; }
  // nullptr if the file has no such tensor.
  const Weight* optional_matrix(const std::string& name, int64_t n_rows, int64_t n_cols);
  const Weight* optional_vector(const std::string& name, int64_t n);
  // [n_vectors, n] floats.
  const Weight* vectors(const std::string& name, int64_t n_vectors, int64_t n);
  const Weight* optional_vectors(const std::string& name, int64_t n_vectors, int64_t n);

  const std::deque<Weight>& weights() const { return weights_; }
  // Returns the tensors of the file that were not bound.
  std::vector<std::string_view> unused() const;

 private:
  std::string full_name(const std::string& name) const;
  const Weight* add(const TensorInfo& tensor, int64_t n_rows, int64_t n_cols);
  const Weight* add_floats(const TensorInfo& tensor, int64_t n_rows, int64_t n_cols);
  std::vector<float>& keep_floats(Weight& weight, std::vector<float> floats);
  void refuse_scale(const TensorInfo& tensor) const;

  const GgufFile& file_;
  int layer_ = -1, layer_in_names_ = -1;
  std::deque<Weight> weights_;                // a deque: graphs hold pointers to them
  std::deque<std::vector<float>> converted_;  // vectors that differ from the file's bytes
  std::unordered_map<int64_t, const Weight*> ones_;
  std::unordered_set<std::string_view> used_;
};

}  // namespace tandem
