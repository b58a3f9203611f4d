// Products of warpgroups (wgmma m64n128k16 of BF16, A in registers, B in shared memory with columns side by side and the
// 128-byte swizzle).
#include "base/fp16.h"
#include "emulated/threads.h"

namespace emulator {
namespace {

constexpr int kTokens = 128, kColumns = 16;
constexpr uint64_t kWindow = uint64_t{1} << 18;  // that an address in a descriptor tells apart

const Operand& operand(Operands operands, size_t i) {
  return operands.begin()[i];
}
float bfloat(uint64_t word, int i) {
  return tandem::bf16_to_fp32(static_cast<uint16_t>(word >> 16 * i));
}

// Where B starts: a descriptor has the low bits of a shared address.
uint64_t start_of(uint64_t descriptor) {
  const uint64_t base = __cvta_generic_to_shared(dynamic_shared());
  uint64_t at = (base & ~(kWindow - 1)) | (descriptor & 0x3fff) * 16;
  return at < base ? at + kWindow : at;
}

std::array<float, 64> compute(const WarpgroupProducts::Product& p) {
  const uint64_t start = start_of(p.b), eight_rows = (p.b >> 32 & 0x3fff) * 16;
  std::array<float, 64> sums{};
  for (int e = 0; e < 64; ++e) {
    const int token = e / 4 * 8 + 2 * (lane() % 4) + e % 2;
    for (int k = 0; k < kColumns; ++k) {
      uint64_t at = start + static_cast<uint64_t>(token / 8) * eight_rows +
                    static_cast<uint64_t>(token % 8 * 128 + 2 * k);
      at ^= (at >> 7 & 7) << 4;
      uint16_t b;
      std::memcpy(&b, __executable_start + at, sizeof b);
      sums[static_cast<size_t>(e)] +=
          p.a[static_cast<size_t>(e % 4 / 2)][static_cast<size_t>(k)] * tandem::bf16_to_fp32(b);
    }
  }
  return sums;
}

}  // namespace

void multiply_by_warpgroup(Operands operands) {
  if (operands.size() != 70) fail("a product of a warpgroup with %zu operands", operands.size());
  WarpgroupProducts& products = warpgroup_products();
  if (!products.fenced) fail("a product of a warpgroup without wgmma.fence");
  if (async_copies().unfenced) fail("a product of a warpgroup behind copies without a fence");
  uint64_t words[4];
  for (size_t i = 0; i < 4; ++i) words[i] = operand(operands, 64 + i).bits;
  const uint64_t b = operand(operands, 68).bits, adds = operand(operands, 69).bits & 0xffffffffu;
  const Words* all = exchange(0xffffffffu, {words[0], words[1], words[2], words[3], b, adds});
  if (all[0].word[4] != b || all[0].word[5] != adds)
    fail("lanes of a warpgroup that multiply by different matrices");
  WarpgroupProducts::Product p;
  for (size_t e = 0; e < 64; ++e) p.sums[e] = static_cast<float*>(operand(operands, e).to);
  for (size_t row = 0; row < 2; ++row) {
    for (int k = 0; k < kColumns; ++k)
      p.a[row][static_cast<size_t>(k)] =
          bfloat(all[lane() / 4 * 4 + k % 8 / 2].word[static_cast<size_t>(k / 8 * 2) + row], k % 2);
  }
  p.b = b;
  p.adds = adds != 0;
  if (p.b >> 62 != 1 || (p.b >> 49 & 7) != 0)
    fail("a matrix descriptor of another swizzle, or with an offset");
  if (start_of(p.b) % 1024 >= 128) fail("a swizzled matrix that does not start on a multiple of 1024 bytes");
  if (draw() & 1) p.product = compute(p);
  products.open.push_back(std::move(p));
}

void fence_warpgroup(Operands) {
  warpgroup_products().fenced = true;
}

void end_warpgroup_group(Operands) {
  WarpgroupProducts& products = warpgroup_products();
  products.groups.push_back(std::exchange(products.open, {}));
  products.fenced = false;
}

void wait_warpgroup_groups(Operands operands) {
  WarpgroupProducts& products = warpgroup_products();
  for (; products.groups.size() > operand(operands, 0).bits; products.groups.pop_front()) {
    for (const WarpgroupProducts::Product& p : products.groups.front()) {
      const std::array<float, 64> sums = p.product ? *p.product : compute(p);
      for (size_t e = 0; e < 64; ++e) *p.sums[e] = sums[e] + (p.adds ? *p.sums[e] : 0.0f);
    }
  }
}

}  // namespace emulator
