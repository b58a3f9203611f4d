#include "tools/quantize/rows.h"

#include <algorithm>

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

void RowConverter::convert(const TensorInfo& source, const std::string& path, DType dtype,
                           std::span<const float> importance, const Sink& sink) {
  const int64_t width = source.dims[0], n_rows = source.n_rows();
  const bool copies = dtype == source.dtype;
  if (copies && !dtype_info(dtype).to_float) {  // integers and the like
    return sink({source.data, source.n_bytes}, source.n_elements());
  }
  const DequantizeFn dequantize = dequantize_fn(source.dtype);
  const QuantizeFn quantize = copies ? nullptr : quantize_fn(dtype);
  const size_t in_bytes = row_bytes(source.dtype, width), out_bytes = row_bytes(dtype, width);
  const int64_t n_slices = static_cast<int64_t>(importance.size()) / width;
  const int64_t item_rows = std::max<int64_t>(1, kItemWeights / width);
  const int64_t batch_rows = std::max<int64_t>(pool_.n_threads(), kBatchWeights / width);
  WeightDefects defects;

  for (int64_t first = 0; first < n_rows; first += batch_rows) {
    if (interrupted()) throw_error(ErrorCode::interrupted, "interrupted: the output is not written");
    const int64_t n = std::min(batch_rows, n_rows - first);
    const std::byte* in = source.data + static_cast<size_t>(first) * in_bytes;
    if (!copies) out_.resize(static_cast<size_t>(n) * out_bytes);
    for (auto& row : rows_) row.resize(width);
    pool_.run([&](Worker& worker) {
      float* x = rows_[worker.index()].data();
      worker.for_each(ceil_div(n, item_rows), [&](int64_t item) {
        for (int64_t r = item * item_rows; r < std::min(n, (item + 1) * item_rows); ++r) {
          dequantize(in + static_cast<size_t>(r) * in_bytes, x, width);
          defects.count(x, width, dtype);
          if (copies) continue;
          const int64_t slice = n_slices > 1 ? (first + r) / source.dims[1] % n_slices : 0;
          const float* weights = n_slices > 0 ? importance.data() + slice * width : nullptr;
          quantize(x, out_.data() + static_cast<size_t>(r) * out_bytes, width, weights);
        }
      });
    });
    if (defects.any()) continue;  // only counts the rest
    const size_t n_bytes = static_cast<size_t>(n) * out_bytes;
    sink(copies ? std::span(in, n_bytes) : std::span<const std::byte>(out_), n * width);
  }
  if (defects.any()) refuse(source, path, defects);
}

}  // namespace tandem::tools
