#include "model/weights.h"

#include <cmath>

#include "base/error.h"
#include "gguf/quants.h"

namespace tandem {
namespace {

[[noreturn]] void wrong_shape(const GgufFile& file, const TensorInfo& t, const std::string& needed) {
  throw_error(ErrorCode::bad_file, "{}: tensor {}: found shape {}, needed {}", file.path(), printable(t.name),
              t.shape_text(), needed);
}

bool fits(int64_t found, int64_t needed) {
  return needed == WeightBinder::kAnySize || found == needed;
}

std::string size_text(int64_t n) {
  return n == WeightBinder::kAnySize ? "any" : std::to_string(n);
}

}  // namespace

std::string WeightBinder::full_name(const std::string& name) const {
  return layer_in_names_ < 0 ? name : "blk." + std::to_string(layer_in_names_) + "." + name;
}

const Weight* WeightBinder::add(const TensorInfo& t, int64_t n_rows, int64_t n_cols) {
  Weight w;
  w.name = std::string(t.name);
  w.dtype = t.dtype;
  w.n_rows = n_rows;
  w.n_cols = n_cols;
  w.data = t.data;
  w.in_file = file_.is_mapped();
  w.layer = layer_;
  used_.insert(t.name);
  weights_.push_back(std::move(w));
  return &weights_.back();
}

// What the family has bound before is no factor. Those of activations are for products in 4 bits.
std::vector<float> WeightBinder::read_factors(const TensorInfo& t, int64_t n_mats) {
  constexpr std::string_view kSuffix = ".weight";
  if (!t.name.ends_with(kSuffix)) return {};
  const std::string base(t.name.substr(0, t.name.size() - kSuffix.size()));
  if (const TensorInfo* of_input = file_.find_tensor(base + ".input_scale")) used_.insert(of_input->name);
  const TensorInfo* scale = file_.find_tensor(base + ".scale");
  if (scale == nullptr) return {};
  if (used_.contains(scale->name) && !scales_.contains(scale->name)) return {};
  scales_.insert(scale->name);
  if (scale->n_rows() != 1 || scale->dims[0] != n_mats) wrong_shape(file_, *scale, "[" + std::to_string(n_mats) + "]");
  const Weight* read = add_floats(*scale, 1, n_mats);
  const auto* first = reinterpret_cast<const float*>(read->data);
  std::vector<float> factors(first, first + n_mats);
  weights_.pop_back();
  for (const float factor : factors) {
    if (std::isfinite(factor) && (factor != 0.0f || n_mats > 1)) continue;
    throw_error(ErrorCode::bad_file, "{}: tensor {}: found {}, needed a factor of a matrix", file_.path(),
                printable(scale->name), factor);
  }
  return factors;
}

const Weight* WeightBinder::matrix(const std::string& name, int64_t n_rows, int64_t n_cols) {
  const TensorInfo& t = file_.tensor(full_name(name));
  file_.require_readable(t);
  if (t.dims[2] != 1 || t.dims[3] != 1 || !fits(t.dims[0], n_cols) || !fits(t.dims[1], n_rows)) {
    wrong_shape(file_, t, "[" + size_text(n_cols) + ", " + size_text(n_rows) + "]");
  }
  std::vector<float> factors = read_factors(t, 1);
  const Weight* added = add(t, t.dims[1], t.dims[0]);
  weights_.back().factors = std::move(factors);
  return added;
}

const Weight* WeightBinder::experts(const std::string& name, int64_t n_mats, int64_t n_rows, int64_t n_cols) {
  const TensorInfo& t = file_.tensor(full_name(name));
  file_.require_readable(t);
  if (t.dims[3] != 1 || t.dims[2] != n_mats || t.dims[1] != n_rows || t.dims[0] != n_cols) {
    wrong_shape(file_, t,
                "[" + size_text(n_cols) + ", " + size_text(n_rows) + ", " + size_text(n_mats) + "]");
  }
  std::vector<float> factors = read_factors(t, n_mats);
  const Weight* added = add(t, n_rows, n_cols);
  weights_.back().n_mats = n_mats;
  weights_.back().factors = std::move(factors);
  return added;
}

const Weight* WeightBinder::rows_of(const std::string& name, const Rows& rows, int64_t n_cols) {
  matrix(name, rows.n_total, n_cols);
  Weight& part = weights_.back();
  part.data += row_bytes(part.dtype, n_cols) * static_cast<size_t>(rows.first);
  part.n_rows = rows.n;
  return &part;
}

const Weight* WeightBinder::optional_rows_of(const std::string& name, const Rows& rows, const Weight& matrix) {
  if (!has(name)) return nullptr;
  bias(name, rows.n_total, matrix);
  Weight& part = weights_.back();
  part.data += sizeof(float) * static_cast<size_t>(rows.first);
  part.n_cols = rows.n;
  return &part;
}

const Weight* WeightBinder::vector(const std::string& name, int64_t n) {
  const TensorInfo& t = file_.tensor(full_name(name));
  if (t.n_rows() != 1 || t.dims[0] != n) wrong_shape(file_, t, "[" + std::to_string(n) + "]");
  return add_floats(t, 1, n);
}

const Weight* WeightBinder::vector_or_column(const std::string& name, int64_t n) {
  const TensorInfo& t = file_.tensor(full_name(name));
  return t.dims[0] == 1 && t.dims[1] == n && t.n_rows() == n ? add_floats(t, 1, n) : vector(name, n);
}

const Weight* WeightBinder::scaled_vector(const std::string& name, int64_t n, float factor) {
  const Weight* added = vector(name, n);
  std::vector<float> floats(static_cast<size_t>(n));
  dequantize_row(DType::F32, added->data, floats.data(), n);
  for (float& x : floats) x *= factor;
  keep_floats(weights_.back(), std::move(floats));
  return added;
}

const Weight* WeightBinder::bias(const std::string& name, int64_t n, const Weight& matrix) {
  return matrix.factors.empty() ? vector(name, n) : scaled_vector(name, n, 1.0f / matrix.factors.front());
}

const Weight* WeightBinder::optional_bias(const std::string& name, const Weight& matrix) {
  return has(name) ? bias(name, matrix.n_rows, matrix) : nullptr;
}

const Weight* WeightBinder::floats(const std::string& name, std::vector<float> values, int64_t n_rows) {
  Weight& w = weights_.emplace_back();
  w.name = full_name(name);
  w.n_rows = n_rows;
  w.n_cols = static_cast<int64_t>(values.size()) / n_rows;
  w.layer = layer_;
  keep_floats(w, std::move(values));
  return &w;
}

const Weight* WeightBinder::ones(int64_t n) {
  const Weight*& known = ones_[n];
  if (known) return known;
  Weight& w = weights_.emplace_back();
  w.name = "ones." + std::to_string(n);
  w.n_rows = 1;
  w.n_cols = n;
  keep_floats(w, std::vector<float>(static_cast<size_t>(n), 1.0f));
  return known = &w;
}

// Gives the weight these values instead of the file's.
std::vector<float>& WeightBinder::keep_floats(Weight& weight, std::vector<float> floats) {
  std::vector<float>& kept = converted_.emplace_back(std::move(floats));
  weight.dtype = DType::F32;
  weight.data = reinterpret_cast<const std::byte*>(kept.data());
  weight.in_file = false;
  return kept;
}

// Kernels read aligned F32; anything else is converted once.
const Weight* WeightBinder::add_floats(const TensorInfo& t, int64_t n_rows, int64_t n_cols) {
  if (t.dtype != DType::F32 && t.dtype != DType::F16 && t.dtype != DType::BF16) {
    throw_error(ErrorCode::bad_file, "{}: tensor {}: found dtype {}, needed F32, F16 or BF16", file_.path(),
                printable(t.name), dtype_name(t.dtype));
  }
  const Weight* added = add(t, n_rows, n_cols);
  const bool usable = t.dtype == DType::F32 && reinterpret_cast<uintptr_t>(t.data) % alignof(float) == 0;
  if (!usable) {
    std::vector<float>& copy =
        keep_floats(weights_.back(), std::vector<float>(static_cast<size_t>(n_rows * n_cols)));
    dequantize_row(t.dtype, t.data, copy.data(), n_rows * n_cols);
  }
  return added;
}

const Weight* WeightBinder::optional_matrix(const std::string& name, int64_t n_rows, int64_t n_cols) {
  return file_.find_tensor(full_name(name)) ? matrix(name, n_rows, n_cols) : nullptr;
}

const Weight* WeightBinder::optional_vector(const std::string& name, int64_t n) {
  return file_.find_tensor(full_name(name)) ? vector(name, n) : nullptr;
}

const Weight* WeightBinder::vectors(const std::string& name, int64_t n_vectors, int64_t n) {
  const TensorInfo& t = file_.tensor(full_name(name));
  if (t.n_rows() != n_vectors || t.dims[1] != n_vectors || t.dims[0] != n) {
    wrong_shape(file_, t, "[" + std::to_string(n) + ", " + std::to_string(n_vectors) + "]");
  }
  return add_floats(t, n_vectors, n);
}

const Weight* WeightBinder::optional_vectors(const std::string& name, int64_t n_vectors, int64_t n) {
  return file_.find_tensor(full_name(name)) ? vectors(name, n_vectors, n) : nullptr;
}

void WeightBinder::refuse(const Weight& weight, const std::string& what) const {
  throw_error(ErrorCode::bad_file, "{}: tensor {}: {} not supported", file_.path(), printable(weight.name), what);
}

std::vector<std::string_view> WeightBinder::unused() const {
  std::vector<std::string_view> names;
  for (const TensorInfo& t : file_.tensors()) {
    if (!used_.contains(t.name)) names.push_back(t.name);
  }
  return names;
}

}  // namespace tandem
