#include "tools/synth/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace tandem::tools {
namespace {

constexpr int64_t kValues = 1 << 16;        // in all pieces: enough that no statistic of a row shows it
constexpr int64_t kFloatsOfAPiece = 32;     // of a dtype without blocks
constexpr int64_t kSampleValues = 1 << 14;  // that tell what quantizing does to the spread
constexpr int kMaxTries = 1000;             // for a random block of about the right spread
constexpr uint64_t kSeed = 0x7e115;

}  // namespace

RandomPieces::RandomPieces(const DTypeInfo& dtype, float stddev, float mean) : dtype_(dtype) {
  TANDEM_CHECK(dtype.to_float && stddev > 0 && (mean == 0 || dtype.block_elements == 1));
  const int64_t piece = dtype.block_elements == 1 ? kFloatsOfAPiece : dtype.block_elements;
  n_pieces_ = static_cast<size_t>(kValues / piece);
  piece_bytes_ = row_bytes(dtype.dtype, piece);
  if (!dtype.from_float) {
    pick_among_random_blocks(stddev);
    return;
  }
  if (mean == 0) {  // coarse formats widen or narrow what they quantize
    const double got = root_mean_square(quantized_normals(kSampleValues, stddev, 0));
    stddev = static_cast<float>(stddev * (stddev / got));
  }
  bytes_ = quantized_normals(kValues, stddev, mean);
}

std::vector<std::byte> RandomPieces::quantized_normals(int64_t n, float stddev, float mean) const {
  Random random(kSeed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) {
    double normal = -6;  // twelve uniform numbers add up to a normal one with deviation 1
    for (int i = 0; i < 12; ++i) normal += random.uniform();
    value = mean + stddev * static_cast<float>(normal);
  }
  std::vector<std::byte> bytes(row_bytes(dtype_.dtype, n));
  dtype_.from_float(values.data(), bytes.data(), n, nullptr);
  return bytes;
}

// Scales are among the random bits, so most blocks are far off: of many, the nearest.
void RandomPieces::pick_among_random_blocks(float stddev) {
  Random random(kSeed);
  bytes_.resize(n_pieces_ * piece_bytes_);
  std::vector<std::byte> block(piece_bytes_);
  for (size_t i = 0; i < n_pieces_; ++i) {
    double least = INFINITY;
    for (int n = 0; n < kMaxTries && least > std::log(1.25); ++n) {
      random.fill(block);
      const double distance = std::fabs(std::log(root_mean_square(block) / stddev));
      if (!(distance < least)) continue;  // NaN, too
      least = distance;
      std::copy(block.begin(), block.end(), bytes_.begin() + static_cast<ptrdiff_t>(i * piece_bytes_));
    }
  }
}

double RandomPieces::root_mean_square(std::span<const std::byte> blocks) const {
  std::vector<float> values(blocks.size() / dtype_.block_bytes * dtype_.block_elements);
  dtype_.to_float(blocks.data(), values.data(), static_cast<int64_t>(values.size()));
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

void RandomWeights::fill(std::span<std::byte> out) {
  for (size_t at = 0; at < out.size(); at += pieces_->piece_bytes()) {
    const std::span<const std::byte> piece = pieces_->pick(random_.next() >> 32);
    std::memcpy(out.data() + at, piece.data(), std::min(piece.size(), out.size() - at));
  }
}

}  // namespace tandem::tools
