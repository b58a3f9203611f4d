#include "tools/synth/random_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "gguf/blocks.h"

namespace tandem::tools {
namespace {

constexpr size_t kFloatLevels =
    4096;  // enough that no statistic of a row shows it, small enough for the L1 cache

// Root mean square of the integers lo..hi, around their mean when `centered`.
double rms(int lo, int hi, bool centered = false) {
  const double mean = centered ? (lo + hi) / 2.0 : 0.0;
  double sum = 0;
  for (int q = lo; q <= hi; ++q) sum += (q - mean) * (q - mean);
  return std::sqrt(sum / (hi - lo + 1));
}

double rms(std::span<const int8_t> levels) {
  double sum = 0;
  for (const int8_t level : levels) sum += level * level;
  return std::sqrt(sum / static_cast<double>(levels.size()));
}

// What a weight's root mean square is when the block scale is 1 and all other bits are uniformly random.
double unit_rms(DType dtype) {
  switch (dtype) {
    case DType::Q4_0: return rms(-8, 7);
    case DType::Q4_1: return rms(0, 15, true);
    case DType::Q5_0: return rms(-16, 15);
    case DType::Q5_1: return rms(0, 31, true);
    case DType::Q8_0: return rms(-127, 127);
    case DType::Q2_K: return rms(0, 15) * rms(0, 3, true);
    case DType::Q3_K: return rms(-32, 31) * rms(-4, 3);
    case DType::Q4_K: return rms(0, 63) * rms(0, 15, true);
    case DType::Q5_K: return rms(0, 63) * rms(0, 31, true);
    case DType::Q6_K: return rms(-128, 127) * rms(-32, 31);
    case DType::IQ4_NL: return rms(kvalues_iq4nl);
    case DType::IQ4_XS: return rms(-32, 31) * rms(kvalues_iq4nl);
    case DType::MXFP4: return rms(kvalues_mxfp4) / 2;
    default: check_failed(__FILE__, __LINE__, "a dtype that can be computed with");
  }
}

// Dtypes x = d * q + m (or d * sc * q - dmin * m): the offset, in units of d, that puts the middle of q at 0.
double centering_offset(DType dtype) {
  switch (dtype) {
    case DType::Q4_1: return -7.5;
    case DType::Q5_1: return -15.5;
    case DType::Q2_K: return 1.5;
    case DType::Q4_K: return 7.5;
    case DType::Q5_K: return 15.5;
    default: return 0;
  }
}

// Runs `fix(block)` over blocks that hold random bits.
template <class Block, class Fix>
void for_each_block(std::span<std::byte> bytes, Fix fix) {
  auto* blocks = reinterpret_cast<Block*>(bytes.data());
  for (size_t i = 0; i < bytes.size() / sizeof(Block); ++i) fix(blocks[i]);
}

// Replaces random bits by the levels that they point to.
template <class Bits>
void pick_levels(std::span<std::byte> bytes, std::span<const uint32_t> levels) {
  std::array<Bits, kFloatLevels> narrow;
  std::copy(levels.begin(), levels.end(), narrow.begin());
  auto* values = reinterpret_cast<Bits*>(bytes.data());
  for (size_t i = 0; i < bytes.size() / sizeof(Bits); ++i) values[i] = narrow[values[i] % kFloatLevels];
}

// Makes the packed mins of Q4_K and Q5_K equal to the packed scales, so that every sub-block is centered.
void copy_scales_to_mins(uint8_t* packed) {
  for (int s = 0; s < 4; ++s) {
    packed[s + 4] = packed[s];
    const uint8_t low = packed[s + 8] & 0xf;
    packed[s + 8] = static_cast<uint8_t>(low | low << 4);
  }
}

}  // namespace

RandomWeights::RandomWeights(DType dtype, float stddev, uint64_t seed, float mean)
    : dtype_(dtype), random_(seed) {
  TANDEM_CHECK(dtype_info(dtype).from_float && stddev > 0);
  if (dtype_info(dtype).block_elements == 1) {
    make_float_levels(stddev, mean);
  } else {
    TANDEM_CHECK(mean == 0);
    make_scales(stddev);
  }
}

void RandomWeights::make_float_levels(float stddev, float mean) {
  levels_.resize(kFloatLevels);
  for (uint32_t& level : levels_) {
    double normal = -6;  // twelve uniform numbers add up to a normal one with deviation 1
    for (int i = 0; i < 12; ++i) normal += random_.uniform();
    const float value = mean + stddev * static_cast<float>(normal);
    switch (dtype_) {
      case DType::F16: level = fp32_to_fp16(value); break;
      case DType::BF16: level = fp32_to_bf16(value); break;
      default: level = std::bit_cast<uint32_t>(value); break;
    }
  }
}

void RandomWeights::make_scales(float stddev) {
  const double scale = stddev / unit_rms(dtype_);
  for (size_t i = 0; i < scales_.size(); ++i) {
    const double varied = scale * (0.75 + 0.5 * static_cast<double>(i) / 255);
    scales_[i] = fp32_to_fp16(static_cast<float>(varied));
    offsets_[i] = fp32_to_fp16(static_cast<float>(varied * centering_offset(dtype_)));
  }
  exponent_ = static_cast<uint8_t>(std::lround(std::log2(scale)) + 127);
}

void RandomWeights::fill(std::span<std::byte> out) {
  random_.fill(out);
  switch (dtype_) {
    case DType::F32: return pick_levels<uint32_t>(out, levels_);
    case DType::F16:
    case DType::BF16: return pick_levels<uint16_t>(out, levels_);
    default: return set_scales(out);
  }
}

void RandomWeights::set_scales(std::span<std::byte> out) {
  const auto set_d = [this](auto& b) { b.d = scales_[b.d & 0xff]; };
  const auto set_d_m = [this](auto& b) {
    const size_t i = b.d & 0xff;
    b.d = scales_[i];
    b.m = offsets_[i];
  };
  const auto set_d_dmin = [this](auto& b) {
    const size_t i = b.d & 0xff;
    b.d = scales_[i];
    b.dmin = offsets_[i];
  };
  switch (dtype_) {
    case DType::Q4_0: return for_each_block<BlockQ4_0>(out, set_d);
    case DType::Q4_1: return for_each_block<BlockQ4_1>(out, set_d_m);
    case DType::Q5_0: return for_each_block<BlockQ5_0>(out, set_d);
    case DType::Q5_1: return for_each_block<BlockQ5_1>(out, set_d_m);
    case DType::Q8_0:
      return for_each_block<BlockQ8_0>(out, [&](BlockQ8_0& b) {
        set_d(b);
        for (int8_t& q : b.qs) q = q == -128 ? -127 : q;  // no quantizer writes -128
      });
    case DType::Q2_K:
      return for_each_block<BlockQ2_K>(out, [&](BlockQ2_K& b) {
        set_d_dmin(b);
        for (uint8_t& s : b.scales) s = static_cast<uint8_t>((s & 0xf) | s << 4);
      });
    case DType::Q3_K: return for_each_block<BlockQ3_K>(out, set_d);
    case DType::Q4_K:
      return for_each_block<BlockQ4_K>(out, [&](BlockQ4_K& b) {
        set_d_dmin(b);
        copy_scales_to_mins(b.scales);
      });
    case DType::Q5_K:
      return for_each_block<BlockQ5_K>(out, [&](BlockQ5_K& b) {
        set_d_dmin(b);
        copy_scales_to_mins(b.scales);
      });
    case DType::Q6_K: return for_each_block<BlockQ6_K>(out, set_d);
    case DType::IQ4_NL: return for_each_block<BlockIQ4_NL>(out, set_d);
    case DType::IQ4_XS: return for_each_block<BlockIQ4_XS>(out, set_d);
    case DType::MXFP4: return for_each_block<BlockMXFP4>(out, [this](BlockMXFP4& b) { b.e = exponent_; });
    default: check_failed(__FILE__, __LINE__, "a block dtype");
  }
}

}  // namespace tandem::tools
