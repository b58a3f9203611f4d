#include "tools/quantize/rows.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "gguf/quants.h"
#include "tools/weight_defects.h"

namespace tandem::tools {
namespace {

constexpr int64_t kItemWeights = int64_t{1} << 14;   // claimed by a worker at once
constexpr int64_t kBatchWeights = int64_t{1} << 21;  // in memory at once

[[noreturn]] void refuse(const TensorInfo& source, const std::string& path, const WeightDefects& defects) {
  const std::string found = defects.text();
  throw_error(ErrorCode::bad_file, "{}: tensor {}: found {} of {} weights, needed finite numbers", path,
              printable(source.name), found, source.n_elements());
}

}  // namespace

RowConverter::RowConverter(ThreadPool& pool) : pool_(pool), rows_(static_cast<size_t>(pool.n_threads())) {}

int64_t RowConverter::batch_rows(const TensorInfo& source) const {
  return std::max<int64_t>(pool_.n_threads(), kBatchWeights / source.dims[0]);
}

template <class Fn>
void RowConverter::for_each_row(const TensorInfo& source, int64_t first, int64_t n, Fn fn) {
  if (interrupted()) throw_error(ErrorCode::interrupted, "interrupted: the output is not written");
  const int64_t width = source.dims[0], item_rows = std::max<int64_t>(1, kItemWeights / width);
  const DequantizeFn dequantize = dequantize_fn(source.dtype);
  const size_t in_bytes = row_bytes(source.dtype, width);
  for (auto& row : rows_) row.resize(width);
  pool_.run([&](Worker& worker) {
    const auto index = static_cast<size_t>(worker.index());
    float* x = rows_[index].data();
    worker.for_each(ceil_div(n, item_rows), [&](int64_t item) {
      for (int64_t r = first + item * item_rows; r < first + std::min(n, (item + 1) * item_rows); ++r) {
        dequantize(source.data + static_cast<size_t>(r) * in_bytes, x, width);
        fn(r, x, index);
      }
    });
  });
}

std::vector<float> RowConverter::nvfp4_factors(const TensorInfo& source) {
  constexpr float kMost = 448.0f * 6.0f;  // the greatest scale times the greatest level
  const auto n_matrices = static_cast<size_t>(source.dims[2]);
  std::vector<std::vector<float>> most(rows_.size(), std::vector<float>(n_matrices, 0.0f));
  const int64_t n_rows = source.n_rows(), at_once = batch_rows(source);
  for (int64_t first = 0; first < n_rows; first += at_once) {
    for_each_row(source, first, std::min(at_once, n_rows - first), [&](int64_t row, const float* x, size_t worker) {
      float& max = most[worker][static_cast<size_t>(row / source.dims[1]) % n_matrices];
      for (int64_t i = 0; i < source.dims[0]; ++i) max = std::max(max, std::fabs(x[i]));
    });
  }
  std::vector<float> factors(n_matrices, 0.0f);
  for (size_t m = 0; m < n_matrices; ++m) {
    for (const std::vector<float>& of_worker : most) factors[m] = std::max(factors[m], of_worker[m] / kMost);
    if (!std::isnormal(factors[m]) || !std::isnormal(1.0f / factors[m])) factors[m] = 1.0f;
  }
  return factors;
}

void RowConverter::convert(const TensorInfo& source, const std::string& path, DType dtype,
                           std::span<const float> importance, std::span<const float> factors, const Sink& sink) {
  const int64_t width = source.dims[0], n_rows = source.n_rows();
  const bool copies = dtype == source.dtype;
  if (copies && !dtype_info(dtype).to_float) {  // integers and the like
    return sink({source.data, source.n_bytes}, source.n_elements());
  }
  const QuantizeFn quantize = copies ? nullptr : quantize_fn(dtype);
  const size_t in_bytes = row_bytes(source.dtype, width), out_bytes = row_bytes(dtype, width);
  const int64_t n_slices = static_cast<int64_t>(importance.size()) / width;
  const int64_t at_once = batch_rows(source);
  WeightDefects defects;

  for (int64_t first = 0; first < n_rows; first += at_once) {
    const int64_t n = std::min(at_once, n_rows - first);
    const std::byte* in = source.data + static_cast<size_t>(first) * in_bytes;
    if (!copies) out_.resize(static_cast<size_t>(n) * out_bytes);
    for_each_row(source, first, n, [&](int64_t r, float* x, size_t) {
      defects.count(x, width, dtype);
      if (copies) return;
      const int64_t matrix = r / source.dims[1], slice = n_slices > 1 ? matrix % n_slices : 0;
      const float* weights = n_slices > 0 ? importance.data() + slice * width : nullptr;
      if (!factors.empty()) {
        const float factor = 1.0f / factors[static_cast<size_t>(matrix) % factors.size()];
        for (int64_t i = 0; i < width; ++i) x[i] *= factor;
      }
      quantize(x, out_.data() + static_cast<size_t>(r - first) * out_bytes, width, weights);
    });
    if (defects.any()) continue;  // only counts the rest
    const size_t n_bytes = static_cast<size_t>(n) * out_bytes;
    sink(copies ? std::span(in, n_bytes) : std::span<const std::byte>(out_), n * width);
  }
  if (defects.any()) refuse(source, path, defects);
}

}  // namespace tandem::tools
