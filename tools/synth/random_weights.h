// Random weights of a given spread, made directly in the bytes of a dtype. Quantizing as many random floats would
// take a hundred times as long: a few blocks are quantized once, and weights are random picks of these. A kernel
// cannot tell the difference; a compressor or somebody reading the values as a distribution could.
//
// Not synchronized: one object, one thread. Nothing is thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gguf/dtype.h"
#include "tools/synth/random.h"

namespace tandem::tools {

// The pool that weights are picked from: pieces of a block, or of a few floats, with normally distributed values. For a
// dtype that can only be read: blocks of random bits whose values happen to spread about that far.
class RandomPieces {
 public:
  // `stddev` > 0; `mean` other than 0 is for the float dtypes only.
  RandomPieces(const DTypeInfo& dtype, float stddev, float mean = 0);

  size_t piece_bytes() const { return piece_bytes_; }
  std::span<const std::byte> pick(uint64_t random) const {
    return std::span(bytes_).subspan(random % n_pieces_ * piece_bytes_, piece_bytes_);
  }

 private:
  std::vector<std::byte> quantized_normals(int64_t n, float stddev, float mean) const;
  void pick_among_random_blocks(float stddev);
  double root_mean_square(std::span<const std::byte> blocks) const;

  DTypeInfo dtype_;
  size_t n_pieces_, piece_bytes_;
  std::vector<std::byte> bytes_;
};

class RandomWeights {
 public:
  RandomWeights(std::shared_ptr<const RandomPieces> pieces, uint64_t seed)
      : pieces_(std::move(pieces)), random_(seed) {}

  // Whole blocks. The bytes depend on how the tensor is cut into calls, so cut it the same way every time.
  void fill(std::span<std::byte> out);

 private:
  std::shared_ptr<const RandomPieces> pieces_;
  Random random_;
};

}  // namespace tandem::tools
