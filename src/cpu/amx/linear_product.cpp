// The order of unpacking and multiplying (layouts and floors: linear_layout.h).
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cpu/amx/linear_layout.h"
#include "cpu/amx/tiles.h"
#include "cpu/avx512/linear_store.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kPairRows = 2 * kTileRows;           // rows, and tokens, of one product
constexpr int64_t kTokensAtOnce = 512;                 // 256 KB of activations of a block of columns
constexpr int64_t kGroupRows = 256;                    // with 512 tokens, 512 KB of sums
constexpr int64_t kSumFloats = kPairRows * kPairRows;  // [2 token tiles][2 strips][16 tokens][16 rows]
constexpr size_t kWidestRow = 2 * kBlockColumns;       // bytes of a block of a row, of F16

// Parts of a worker's scratch.
struct Scratch {
  std::byte* panel;  // [2 strips][planes][kPlaneVectors] vectors
  std::byte* copy;   // [16 rows][kWidestRow] the last rows or columns
  float* results;    // [2][kSumFloats] complete sums
  float* sums;       // [pairs of strips][pairs of token tiles][kSumFloats]

  explicit Scratch(std::byte* at)
      : panel(at),
        copy(panel + 2 * 2 * kPlaneVectors * 64),
        results(reinterpret_cast<float*>(copy + kTileRows * kWidestRow)),
        sums(results + 2 * kSumFloats) {}
  static size_t bytes(int64_t n_tokens) {
    const int64_t pairs = whole(min64(n_tokens, kTokensAtOnce), kPairRows) / kPairRows;
    return 2 * 2 * kPlaneVectors * 64 + kTileRows * kWidestRow +
           static_cast<size_t>((2 + kGroupRows / kPairRows * pairs) * kSumFloats) * sizeof(float);
  }
};

// Stores complete sums of up to 32 tokens and 32 rows, a token a call: while tiles multiply the next ones.
class StoreBeside {
 public:
  explicit StoreBeside(const LinearCall& call) : call_(call) {}
  void begin(int64_t row, int64_t token, int64_t end, const float* results) {
    row_ = row;
    token_ = token;
    end_ = end;
    results_ = results;
  }
  TANDEM_INLINE void operator()() {
    if (token_ >= end_) return;
    store_tile(call_, row_, token_, 1, results_);
    if (row_ + kTileRows < call_.m) store_tile(call_, row_ + kTileRows, token_, 1, results_ + 256);
    // The two tiles of the next 16 tokens lie behind those of these.
    results_ += ++token_ % kTileRows == 0 ? 16 + 256 : 16;
  }
  void finish() {
    while (token_ < end_) (*this)();
  }

 private:
  const LinearCall& call_;
  const float* results_ = nullptr;
  int64_t row_ = 0, token_ = 0, end_ = 0;
};

// to = sums + the product of A tiles of 16 tokens with two strips over `steps` tiles of columns. Calls beside() four times for each
// of them.
template <int A, int planes, int stored, class Beside>
TANDEM_INLINE void multiply_pair(const std::byte* x, size_t tile_row_bytes, const std::byte* panel,
                                 int64_t steps, bool first, const float* sums, float* to, Beside& beside) {
  constexpr size_t kPlane = kPlaneVectors * 64, kStripBytes = stored * kPlane, kSum = 256;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (A == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + kSum, 64);
    if constexpr (A == 2) {
      _tile_loadd(2, sums + 2 * kSum, 64);
      _tile_loadd(3, sums + 3 * kSum, 64);
    }
  }
  for (int64_t i = 0; i < steps; ++i, x += 1024, panel += 1024) {
    _tile_loadd(4, x, 64);
    if constexpr (A == 2) _tile_loadd(5, x + tile_row_bytes, 64);
    _tile_loadd(6, panel, 64);
    _tile_loadd(7, panel + kStripBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    beside();
    _tile_dpbf16ps(1, 4, 7);
    beside();
    if constexpr (A == 2) {
      _tile_dpbf16ps(2, 5, 6);
      beside();
      _tile_dpbf16ps(3, 5, 7);
      beside();
    }
    if constexpr (planes == 2) {
      _tile_loadd(6, panel + kPlane, 64);
      _tile_loadd(7, panel + kPlane + kStripBytes, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (A == 2) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, to, 64);
  _tile_stored(1, to + kSum, 64);
  if constexpr (A == 2) {
    _tile_stored(2, to + 2 * kSum, 64);
    _tile_stored(3, to + 3 * kSum, 64);
  }
}

// Rows of weights to prefetch while tiles are multiplied, some at a time: the hardware does not follow 32 rows at once, and
// all of them at once would fill the buffers that the tiles' loads need.
struct Ahead {
  const std::byte* from = nullptr;
  size_t stride = 0, width = 0;
  int64_t n_rows = 0;

  TANDEM_INLINE void prefetch(int64_t row, int64_t n) const {
    const int64_t last = min64(row + n, n_rows);
    for (; row < last; ++row) {
      const std::byte* at = from + static_cast<size_t>(row) * stride;
      for (size_t i = 0; i < width; i += 64) _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(at + width - 1), _MM_HINT_T1);
    }
  }
};

// Some tokens times a group of rows.
class GroupProduct {
 public:
  GroupProduct(const LinearCall& call, const Format& format, std::byte* scratch)
      : call_(call),
        f_(format),
        scratch_(scratch),
        stride_(static_cast<size_t>(call.k / format.unit) * format.unit_bytes) {}

  void run(int64_t row0, int64_t row1, int64_t token0, int64_t token1) const {
    const int64_t token_pairs = whole(token1 - token0, kPairRows) / kPairRows;
    for (int64_t column = 0; column < call_.k; column += kBlockColumns) {
      const ActivationBlock block = activation_block(call_.n, call_.k, column);
      float* sums = scratch_.sums;
      for (int64_t row = row0; row < row1; row += kPairRows) {
        int planes = unpack(row, column, block.n_columns, 0);
        if (row + kTileRows < row1)
          planes = std::max(planes, unpack(row + kTileRows, column, block.n_columns, 1));
        const Ahead ahead = row + kPairRows < row1 ? ahead_of(row + kPairRows, column)
                                                   : ahead_of(row0, column + kBlockColumns);
        settle_stores();
        if (f_.planes == 1) {
          products<1, 1>(block, column, row, token0, token1, ahead, sums);
        } else if (planes == 1) {
          products<1, 2>(block, column, row, token0, token1, ahead, sums);
        } else {
          products<2, 2>(block, column, row, token0, token1, ahead, sums);
        }
        sums += token_pairs * kSumFloats;
      }
    }
  }

 private:
  // Unpacks a strip's block of columns. What a strip or row lacks is read from a copy: zeros after the last column,
  // anything after the last row, whose sums are never stored.
  int unpack(int64_t row, int64_t column, int64_t n_columns, int64_t strip) const {
    const size_t at = static_cast<size_t>(column / f_.unit) * f_.unit_bytes;
    WeightRows rows{call_.w + static_cast<size_t>(row) * stride_ + at, stride_};
    const int64_t n_rows = min64(kTileRows, call_.m - row), present = min64(n_columns, call_.k - column);
    if (n_rows < kTileRows || present < n_columns) {
      const size_t width = static_cast<size_t>(present / f_.unit) * f_.unit_bytes;
      for (int64_t r = 0; r < n_rows; ++r) {
        std::byte* to = scratch_.copy + static_cast<size_t>(r) * kWidestRow;
        std::memcpy(to, rows.base + static_cast<size_t>(r) * stride_, width);
        std::memset(to + width, 0, static_cast<size_t>(n_columns - present) * f_.unit_bytes);
      }
      rows = {scratch_.copy, kWidestRow};
    }
    return f_.unpack(rows, n_columns,
                     scratch_.panel + static_cast<size_t>(strip * f_.planes * kPlaneVectors) * 64);
  }

  // The block that is unpacked next, empty after the last.
  Ahead ahead_of(int64_t row, int64_t column) const {
    const int64_t n_columns = min64(kBlockColumns, call_.k - column);
    if (n_columns <= 0) return {};
    return {
        call_.w + static_cast<size_t>(row) * stride_ + static_cast<size_t>(column / f_.unit) * f_.unit_bytes,
        stride_, static_cast<size_t>(n_columns / f_.unit) * f_.unit_bytes, min64(kPairRows, call_.m - row)};
  }

  // All tokens times the unpacked block of two strips, of whose planes some are multiplied.
  template <int planes, int stored>
  void products(const ActivationBlock& block, int64_t column, int64_t row, int64_t token0, int64_t token1,
                const Ahead& ahead, float* sums) const {
    const int64_t steps = block.n_columns / kTileColumns;
    const bool first = column == 0, last = column + kBlockColumns >= call_.k;
    const std::byte* x =
        call_.x + block.offset + static_cast<size_t>(token0 / kTileRows) * block.tile_row_bytes();
    StoreBeside store(call_);
    Nothing nothing;
    const int64_t rows_at_once = whole(ahead.n_rows * kPairRows, token1 - token0) / (token1 - token0);
    for (int64_t token = token0, i = 0; token < token1; token += kPairRows, i += rows_at_once) {
      ahead.prefetch(i, rows_at_once);
      float* to = last ? scratch_.results + token / kPairRows % 2 * kSumFloats : sums;
      const auto multiply = [&](auto tiles, auto& beside) __attribute__((always_inline)) {
        multiply_pair<tiles.value, planes, stored>(x, block.tile_row_bytes(), scratch_.panel, steps, first,
                                                   sums, to, beside);
      };
      const auto multiply_some = [&](auto& beside) __attribute__((always_inline)) {
        token1 - token > kTileRows ? multiply(Index<2>{}, beside) : multiply(Index<1>{}, beside);
      };
      if (last) {
        multiply_some(store);
        store.finish();
        settle_stores();
        store.begin(row, token, min64(token + kPairRows, token1), to);
      } else {
        multiply_some(nothing);
      }
      x += 2 * block.tile_row_bytes();
      sums += kSumFloats;
    }
    store.finish();
  }

  const LinearCall& call_;
  const Format& f_;
  Scratch scratch_;
  size_t stride_;
};

}  // namespace

void multiply_tiles(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  const Format* format = find_format(call.dtype);
  TANDEM_CHECK(format != nullptr);
  const TileScope tiles;
  const GroupProduct product(call, *format, scratch);
  for (int64_t token = call.token0; token < call.end_token(); token += kTokensAtOnce) {
    const int64_t token1 = min64(token + kTokensAtOnce, call.end_token());
    for (int64_t row = row0; row < row1; row += kGroupRows) {
      product.run(row, min64(row + kGroupRows, row1), token, token1);
    }
  }
}

size_t tiles_scratch_bytes(DType, int64_t n) {
  return Scratch::bytes(n);
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
