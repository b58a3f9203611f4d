#include "tools/convert/tensor_converter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>

#include "base/checked.h"
#include "base/error.h"
#include "base/fp16.h"
#include "base/fp8.h"
#include "base/interrupt.h"
#include "gguf/blocks.h"
#include "gguf/quants.h"
#include "tools/weight_defects.h"

namespace tandem::tools {
namespace {

constexpr int64_t kItemWeights = int64_t{1} << 16;   // claimed by a worker at once
constexpr int64_t kBatchWeights = int64_t{1} << 22;  // in memory at once

[[noreturn]] void refuse(const TensorMapping& mapping, const WeightDefects& defects) {
  const std::string found = defects.text(" (--outtype bf16 holds them)");
  const SourceTensor& source = *mapping.sources[0];
  throw_error(ErrorCode::bad_file, "{}: tensor {}: found {} of the {} weights of {}, needed finite numbers",
              source.file->path(), printable(source.name), found, mapping.n_elements(), mapping.name);
}

template <class T, class Convert>
void widen(const std::byte* raw, int64_t stride, int64_t n, float* out, Convert convert) {
  for (int64_t i = 0; i < n; ++i) {
    T x;
    std::memcpy(&x, raw + i * stride * static_cast<int64_t>(sizeof x), sizeof x);
    out[i] = convert(x);
  }
}

// Converts every `stride`-th number at `raw`.
void to_floats(SourceDType dtype, const std::byte* raw, int64_t stride, int64_t n, float* out) {
  switch (dtype) {
    case SourceDType::F64:
      return widen<double>(raw, stride, n, out, [](double x) { return static_cast<float>(x); });
    case SourceDType::F32: return widen<float>(raw, stride, n, out, [](float x) { return x; });
    case SourceDType::F16:
      return widen<fp16_t>(raw, stride, n, out, [](fp16_t x) { return fp16_to_fp32(x); });
    case SourceDType::BF16:
      return widen<bf16_t>(raw, stride, n, out, [](bf16_t x) { return bf16_to_fp32(x); });
    case SourceDType::F8_E4M3: return widen<uint8_t>(raw, stride, n, out, fp8_e4m3_to_fp32);
    default: TANDEM_CHECK(false);
  }
}

// Element i of packed halves of bytes: the first of two is the low one.
std::byte nibble(const std::byte* raw, int64_t i) {
  return (raw[i / 2] >> (i % 2 * 4)) & std::byte{15};
}

// The same of NVFP4, of a matrix at `raw` from element `first` on.
void fp4_to_floats(const std::byte* raw, int64_t first, int64_t stride, int64_t n, float* out) {
  for (int64_t i = 0, at = first; i < n; ++i, at += stride) {
    out[i] = 0.5f * static_cast<float>(fp4_doubled(std::to_integer<uint32_t>(nibble(raw, at))));
  }
}

// A vector whose rows change places counts as rows of one element.
int64_t width_of(const TensorMapping& mapping) {
  const bool moves = mapping.pair_head_dim > 0 || !mapping.row_order.empty();
  return mapping.dims.size() == 1 && moves ? 1 : mapping.n_cols();
}

// Reads the rows of a mapping as floats.
class RowReader {
 public:
  explicit RowReader(const TensorMapping& mapping)
      : mapping_(mapping),
        width_(width_of(mapping)),
        dtype_(mapping.sources[0]->dtype),
        size_(static_cast<int64_t>(source_dtype_bytes(dtype_))) {
    // Contiguous rows are read in one go.
    in_order_ = mapping.col_stride == 1 && mapping.row_stride == width_ && mapping.pair_head_dim == 0 &&
                mapping.row_order.empty();
    for (const SourceTensor* scales : mapping.block_scales) scales_.push_back(read_scales(scales));
    for (size_t i = 0; i < mapping.factors.size(); ++i) {
      for (float& scale : scales_[i]) scale *= mapping.factors[i];
    }
  }

  bool gathers() const { return mapping_.col_stride != 1; }

  // Reads a whole matrix, for tensors whose columns are gathered.
  void read_matrix(int64_t matrix, std::vector<std::byte>& out) const {
    const auto [tensor, start] = place(matrix);
    const int64_t n = mapping_.matrix_stride > 0 ? mapping_.matrix_stride : tensor->n_elements() * per_byte();
    out.resize(n * size_ / per_byte());
    tensor->file->read(tensor->offset + static_cast<uint64_t>(start * size_ / per_byte()), out);
  }

  // Reads rows [row, row + n) of a matrix; `gathered` is the whole matrix if columns are gathered.
  void read_rows(int64_t matrix, int64_t row, int64_t n, std::span<const std::byte> gathered,
                 std::vector<std::byte>& raw, float* out) const {
    float* const rows = out;
    if (gathers()) {
      for (int64_t r = row; r < row + n; ++r, out += width_) {
        const int64_t at = mapping_.source_row(r) * mapping_.row_stride + mapping_.first;
        if (mapping_.of_nvfp4()) {
          fp4_to_floats(gathered.data(), at, mapping_.col_stride, width_, out);
        } else {
          to_floats(type_of(matrix), gathered.data() + at * size_, mapping_.col_stride, width_, out);
        }
      }
    } else if (in_order_) {
      read_run(matrix, row * mapping_.row_stride, n * width_, raw, out);
    } else {
      for (int64_t r = 0; r < n; ++r) {
        read_run(matrix, mapping_.source_row(row + r) * mapping_.row_stride, width_, raw, out + r * width_);
      }
    }
    if (!scales_.empty() && !scales_of(matrix).empty()) {
      for (int64_t r = 0; r < n; ++r) scale_row(matrix, mapping_.source_row(row + r), rows + r * width_);
    }
    if (!mapping_.col_order.empty()) order_columns(n, rows);
  }

 private:
  void order_columns(int64_t n, float* rows) const {
    std::vector<float> row(static_cast<size_t>(width_));
    for (int64_t r = 0; r < n; ++r, rows += width_) {
      std::copy_n(rows, width_, row.data());
      for (int64_t i = 0; i < width_; ++i) rows[i] = row[mapping_.col_order[static_cast<size_t>(i)]];
    }
  }

  // Of an FP8 matrix they are few: one for each 128 x 128 weights. Of NVFP4 they are four bytes for eight, but most matrices of it are
  // repacked.
  static std::vector<float> read_scales(const SourceTensor* tensor) {
    if (tensor == nullptr) return {};
    std::vector<std::byte> raw(tensor->n_bytes);
    tensor->file->read(tensor->offset, raw);
    std::vector<float> scales(static_cast<size_t>(tensor->n_elements()));
    to_floats(tensor->dtype, raw.data(), 1, tensor->n_elements(), scales.data());
    return scales;
  }

  const std::vector<float>& scales_of(int64_t matrix) const {
    return scales_[scales_.size() > 1 ? static_cast<size_t>(matrix) : 0];
  }

  void scale_row(int64_t matrix, int64_t source_row, float* row) const {
    const auto [tensor, start] = place(matrix);
    const int64_t n_cols = tensor->shape.back() * per_byte(), n_across = ceil_div(n_cols, mapping_.block_cols);
    const std::vector<float>& scales = scales_of(matrix);
    int64_t at = start + source_row * mapping_.row_stride + mapping_.first;
    for (int64_t i = 0; i < width_; ++i, at += mapping_.col_stride) {
      row[i] *= scales[static_cast<size_t>(at / n_cols / mapping_.block_rows * n_across +
                                           at % n_cols / mapping_.block_cols)];
    }
  }

  std::pair<const SourceTensor*, int64_t> place(int64_t matrix) const {
    if (mapping_.sources.size() > 1) return {mapping_.sources[matrix], 0};
    return {mapping_.sources[0], matrix * mapping_.matrix_stride};
  }
  SourceDType type_of(int64_t matrix) const { return place(matrix).first->dtype; }

  void read_run(int64_t matrix, int64_t at, int64_t n, std::vector<std::byte>& raw, float* out) const {
    const auto [tensor, start] = place(matrix);
    const auto size = static_cast<int64_t>(source_dtype_bytes(tensor->dtype));
    raw.resize(n * size / per_byte());
    tensor->file->read(tensor->offset + static_cast<uint64_t>((start + at + mapping_.first) * size / per_byte()), raw);
    if (mapping_.of_nvfp4()) return fp4_to_floats(raw.data(), 0, 1, n, out);
    to_floats(tensor->dtype, raw.data(), 1, n, out);
  }

  // Elements of a byte.
  int64_t per_byte() const { return mapping_.of_nvfp4() ? 2 : 1; }

  const TensorMapping& mapping_;
  int64_t width_;
  SourceDType dtype_;
  int64_t size_;
  bool in_order_;
  std::vector<std::vector<float>> scales_;  // of each matrix in FP8; empty for others
};

// Runs fn(item, worker index) for all items on the pool; rethrows the first exception.
template <class Fn>
void run_items(ThreadPool& pool, int64_t n_items, Fn fn) {
  std::exception_ptr failure;
  std::mutex mutex;
  pool.run([&](Worker& worker) {
    worker.for_each(n_items, [&](int64_t item) {
      try {
        fn(item, static_cast<size_t>(worker.index()));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  });
  if (failure) std::rethrow_exception(failure);
}

void check_interrupt() {
  if (interrupted()) throw_error(ErrorCode::interrupted, "interrupted: the output is not written");
}

}  // namespace

TensorConverter::TensorConverter(ThreadPool& pool)
    : pool_(pool), buffers_(static_cast<size_t>(pool.n_threads())) {}

void TensorConverter::convert(const TensorMapping& mapping, const Sink& sink) {
  if (mapping.sources.empty()) return convert_values(mapping, sink);
  if (mapping.scales) return repack_mxfp4(mapping, sink);
  if (mapping.dtype == DType::NVFP4) return repack_nvfp4(mapping, sink);
  convert_floats(mapping, sink);
}

void TensorConverter::convert_values(const TensorMapping& mapping, const Sink& sink) {
  sink(std::as_bytes(std::span(mapping.values)));
}

void TensorConverter::convert_floats(const TensorMapping& mapping, const Sink& sink) {
  const RowReader reader(mapping);
  const QuantizeFn quantize = quantize_fn(mapping.dtype);
  const int64_t width = width_of(mapping), n_rows = mapping.n_elements() / width,
                matrix_rows = std::max<int64_t>(1, mapping.matrix_rows);
  const size_t out_bytes = row_bytes(mapping.dtype, width);
  const int64_t item_rows = std::max<int64_t>(1, kItemWeights / width);
  const int64_t batch_rows = std::max<int64_t>(pool_.n_threads(), kBatchWeights / width);
  WeightDefects defects;
  for (int64_t matrix = 0; matrix * matrix_rows < n_rows; ++matrix) {
    if (reader.gathers()) reader.read_matrix(matrix, matrix_);
    for (int64_t first = 0; first < matrix_rows; first += batch_rows) {
      check_interrupt();
      const int64_t n = std::min(batch_rows, matrix_rows - first);
      out_.resize(static_cast<size_t>(n) * out_bytes);
      run_items(pool_, ceil_div(n, item_rows), [&](int64_t item, size_t worker) {
        const int64_t begin = item * item_rows, n_item = std::min(item_rows, n - begin);
        Buffers& b = buffers_[worker];
        b.row.resize(n_item * width);
        reader.read_rows(matrix, first + begin, n_item, matrix_, b.raw, b.row.data());
        for (float& x : b.row) x = mapping.minus_exp ? -std::exp(x) : x + mapping.add;
        defects.count(b.row.data(), n_item * width, mapping.dtype);
        quantize(b.row.data(), out_.data() + static_cast<size_t>(begin) * out_bytes, n_item * width, nullptr);
      });
      if (!defects.any()) sink(out_);  // with defects, only counts the rest
    }
  }
  if (defects.any()) refuse(mapping, defects);
}

template <class Fn>
void TensorConverter::repack_rows(const TensorMapping& mapping, const Sink& sink, Fn row) {
  const size_t out_bytes = row_bytes(mapping.dtype, mapping.n_cols());
  const int64_t batch_rows = std::max<int64_t>(pool_.n_threads(), kBatchWeights / mapping.n_cols());
  const int64_t item_rows = std::max<int64_t>(1, kItemWeights / mapping.n_cols());
  for (int64_t first = 0; first < mapping.n_rows(); first += batch_rows) {
    check_interrupt();
    const int64_t n = std::min(batch_rows, mapping.n_rows() - first);
    out_.resize(static_cast<size_t>(n) * out_bytes);
    run_items(pool_, ceil_div(n, item_rows), [&](int64_t item, size_t worker) {
      for (int64_t r = item * item_rows; r < std::min(n, (item + 1) * item_rows); ++r)
        row(first + r, buffers_[worker], out_.data() + static_cast<size_t>(r) * out_bytes);
    });
    sink(out_);
  }
}

// The same numbers in another order. The checkpoint packs neighbours into a byte and keeps the scales apart;
// GGUF packs elements i and i + 16 into a byte, after the block's scale.
void TensorConverter::repack_mxfp4(const TensorMapping& mapping, const Sink& sink) {
  constexpr int64_t kHalf = 16;
  const int64_t blocks = mapping.n_cols() / 32, matrix_rows = mapping.dims[1];
  repack_rows(mapping, sink, [&](int64_t row, Buffers& b, std::byte* out) {
    b.raw.resize(blocks * (kHalf + 1));
    const std::span<std::byte> nibbles = std::span(b.raw).first(blocks * kHalf);
    const std::span<std::byte> scales = std::span(b.raw).last(blocks);
    const auto at = static_cast<uint64_t>(row / matrix_rows * mapping.matrix_stride +
                                          row % matrix_rows * mapping.row_stride + mapping.first);
    mapping.sources[0]->file->read(mapping.sources[0]->offset + at * kHalf, nibbles);
    mapping.scales->file->read(mapping.scales->offset + at, scales);
    for (int64_t block = 0; block < blocks; ++block, out += kHalf + 1) {
      const std::byte* in = nibbles.data() + block * kHalf;
      out[0] = scales[block];
      for (int64_t i = 0; i < kHalf; ++i) out[1 + i] = nibble(in, i) | nibble(in, i + kHalf) << 4;
    }
  });
}

// Likewise: GGUF packs elements i and i + 8 of 16, after the scales of 64.
void TensorConverter::repack_nvfp4(const TensorMapping& mapping, const Sink& sink) {
  constexpr int64_t kHalf = 8, kSub = 2 * kHalf, kSubs = sizeof(BlockNVFP4::d);
  const int64_t subs = mapping.n_cols() / kSub;
  repack_rows(mapping, sink, [&](int64_t row, Buffers& b, std::byte* out) {
    b.raw.resize(subs * (kHalf + 1));
    const std::span<std::byte> nibbles = std::span(b.raw).first(subs * kHalf);
    const std::span<std::byte> scales = std::span(b.raw).last(subs);
    const auto matrix = static_cast<size_t>(row / mapping.matrix_rows);
    const SourceTensor &codes_of = *mapping.sources[matrix], &scales_of = *mapping.block_scales[matrix];
    const auto at = static_cast<uint64_t>(
        (mapping.source_row(row % mapping.matrix_rows) * mapping.row_stride + mapping.first) / kSub);
    codes_of.file->read(codes_of.offset + at * kHalf, nibbles);
    scales_of.file->read(scales_of.offset + at, scales);
    for (int64_t s = 0; s < subs; ++s) {
      if (std::to_integer<int>(scales[s]) >= 0x7f) {
        throw_error(ErrorCode::bad_file, "{}: tensor {}: found scale {} of 16 weights of {}, needed a finite one, not negative",
                    scales_of.file->path(), printable(scales_of.name),
                    fp8_e4m3_to_fp32(std::to_integer<uint8_t>(scales[s])), mapping.name);
      }
    }
    for (int64_t s = 0; s < subs; s += kSubs) {
      out = std::copy_n(scales.data() + s, kSubs, out);
      for (int64_t sub = s; sub < s + kSubs; ++sub) {
        const std::byte* in = nibbles.data() + sub * kHalf;
        for (int64_t i = 0; i < kHalf; ++i) *out++ = nibble(in, i) | nibble(in, i + kHalf) << 4;
      }
    }
  });
}

}  // namespace tandem::tools
