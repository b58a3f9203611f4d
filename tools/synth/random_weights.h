// Random weights of a given spread, made directly in the bytes of any computable dtype. Quantizing random
// floats would give the same sort of file a hundred times slower: here the quants are uniform random bits,
// and only the scales are chosen, so that the values have mean 0 and the standard deviation asked for. A
// kernel cannot tell the difference; a compressor or somebody reading the values as a distribution could.
//
// Not synchronized: one object, one thread. Nothing is thrown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fp16.h"
#include "gguf/dtype.h"
#include "tools/synth/random.h"

namespace tandem::tools {

class RandomWeights {
 public:
  // `stddev` > 0; `mean` other than 0 is for the float dtypes only.
  RandomWeights(DType dtype, float stddev, uint64_t seed, float mean = 0);

  // Whole blocks. The bytes depend on how the tensor is cut into calls, so cut it the same way every time.
  void fill(std::span<std::byte> out);

 private:
  void make_float_levels(float stddev, float mean);
  void make_scales(float stddev);
  void set_scales(std::span<std::byte> out);

  DType dtype_;
  Random random_;
  std::vector<uint32_t> levels_;  // float dtypes: bit patterns of normally distributed values, to pick from
  std::array<fp16_t, 256> scales_{};   // block dtypes: the block scale, varied by a random byte
  std::array<fp16_t, 256> offsets_{};  // dtypes with a minimum: the offset that goes with it
  uint8_t exponent_ = 0;               // MXFP4
};

}  // namespace tandem::tools
