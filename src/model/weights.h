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

  // A matrix [n_rows, n_cols] of any dtype that can be read; kAnySize accepts the file's size. If the file has a factor for the
  // whole matrix ("ffn_up.scale" for "ffn_up.weight", in files of NVFP4), it becomes the weight's.
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
  // These values, [n_rows, values / n_rows], in the layer of the following weights. Not from the file.
  const Weight* floats(const std::string& name, std::vector<float> values, int64_t n_rows = 1);
  // Matrices [n_rows, n_cols], one for each of n_mats experts, with factors likewise.
  const Weight* experts(const std::string& name, int64_t n_mats, int64_t n_rows, int64_t n_cols);
  // A range of rows of a fused matrix, as a weight of its own under the tensor's name.
  struct Rows {
    int64_t n_total, first, n;
  };
  const Weight* rows_of(const std::string& name, const Rows& rows, int64_t n_cols);
  // The same for a vector, the bias of such a matrix: before its factor. nullptr if the file has no such tensor.
  const Weight* optional_rows_of(const std::string& name, const Rows& rows, const Weight& matrix);

  bool has(const std::string& name) const { return file_.find_tensor(full_name(name)) != nullptr; }
  // nullptr if the file has no such tensor.
  const Weight* optional_matrix(const std::string& name, int64_t n_rows, int64_t n_cols);
  const Weight* optional_vector(const std::string& name, int64_t n);
  // The bias of a matrix, before the matrix's factor: what is added to its products is factor times the result.
  const Weight* optional_bias(const std::string& name, const Weight& matrix);
  // [n_vectors, n] floats.
  const Weight* vectors(const std::string& name, int64_t n_vectors, int64_t n);
  const Weight* optional_vectors(const std::string& name, int64_t n_vectors, int64_t n);

  // Throws: the file has something that is not supported at this weight.
  [[noreturn]] void refuse(const Weight& weight, const std::string& what) const;

  const std::deque<Weight>& weights() const { return weights_; }
  // Returns the tensors of the file that were not bound.
  std::vector<std::string_view> unused() const;

 private:
  std::string full_name(const std::string& name) const;
  const Weight* add(const TensorInfo& tensor, int64_t n_rows, int64_t n_cols);
  const Weight* add_floats(const TensorInfo& tensor, int64_t n_rows, int64_t n_cols);
  std::vector<float>& keep_floats(Weight& weight, std::vector<float> floats);
  const Weight* bias(const std::string& name, int64_t n, const Weight& matrix);
  std::vector<float> read_factors(const TensorInfo& tensor, int64_t n_mats);

  const GgufFile& file_;
  int layer_ = -1, layer_in_names_ = -1;
  std::deque<Weight> weights_;                // a deque: graphs hold pointers to them
  std::deque<std::vector<float>> converted_;  // vectors that differ from the file's bytes
  std::unordered_map<int64_t, const Weight*> ones_;
  std::unordered_set<std::string_view> used_;
  std::unordered_set<std::string_view> scales_;  // of those, what matrices have for their factors
};

}  // namespace tandem
