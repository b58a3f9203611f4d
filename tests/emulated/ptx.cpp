// The PTX instructions in the kernels' inline assembly: products of fragments, loading matrices from shared
// memory, asynchronous copies.
#include <vector>

#include "base/fp16.h"
#include "emulated/threads.h"

namespace emulator {
namespace {

const Operand& operand(Operands operands, size_t i) {
  if (i >= operands.size()) fail("an instruction with too few operands");
  return operands.begin()[i];
}
template <class T>
T value(Operands operands, size_t i) {
  return from_bits<T>(operand(operands, i).bits);
}
template <class T>
void set(Operands operands, size_t i, T x) {
  const Operand& o = operand(operands, i);
  if (o.size != sizeof x) fail("an output of %zu bytes", o.size);
  std::memcpy(o.to, &x, sizeof x);
}
std::byte* shared_at(uint64_t address) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(__executable_start) +
                                      static_cast<uint32_t>(address));
}

// ---- Products ----

// Element i of a register of 16-bit or 8-bit elements.
float half_element(uint64_t word, int i) {
  return tandem::fp16_to_fp32(static_cast<uint16_t>(word >> 16 * i));
}
float bfloat_element(uint64_t word, int i) {
  return tandem::bf16_to_fp32(static_cast<uint16_t>(word >> 16 * i));
}
int byte_element(uint64_t word, int i) {
  return static_cast<int8_t>(word >> 8 * i);
}
int unsigned_byte_element(uint64_t word, int i) {
  return static_cast<uint8_t>(word >> 8 * i);
}

// c [16, 8] = a [16, k] b [k, 8] + c, where four lanes share a row of a (and a column of b) and hold kWidth
// neighbouring elements of k in a register: registers 0 and 1 of a are rows g and g + 8 of the first half of
// k (of all of it, where a has two), 2 and 3 of the second. The first n_a words of a lane are its a, the rest
// its b.
template <int kWidth, class Sum, class ElementA, class ElementB>
void multiply(Operands operands, int n_a, ElementA element_a, ElementB element_b, bool accumulate) {
  const int n_b = n_a / 2;
  uint64_t words[6] = {};
  for (int i = 0; i < n_a + n_b; ++i) words[i] = value<uint32_t>(operands, static_cast<size_t>(4 + i));
  const Words* all = exchange(0xffffffffu, {words[0], words[1], words[2], words[3], words[4], words[5]});
  const int g = lane() / 4, t = lane() % 4;
  for (int e = 0; e < 4; ++e) {
    const int row = g + 8 * (e / 2), column = 2 * t + e % 2;
    Sum sum = accumulate ? value<Sum>(operands, static_cast<size_t>(e)) : Sum{};
    for (int part = 0; part < n_b; ++part) {
      for (int quarter = 0; quarter < 4; ++quarter) {
        const uint64_t a = all[4 * (row % 8) + quarter].word[2 * part + row / 8];
        const uint64_t b = all[4 * column + quarter].word[n_a + part];
        for (int i = 0; i < kWidth; ++i)
          sum += static_cast<Sum>(element_a(a, i)) * static_cast<Sum>(element_b(b, i));
      }
    }
    set(operands, static_cast<size_t>(e), sum);
  }
}

// ---- Shared memory ----

// Lane i gives the address of row i % 8 of matrix i / 8, eight elements of 16 bits.
void load_matrices(Operands operands, bool transposed) {
  const Words* all = exchange(0xffffffffu, {value<uint32_t>(operands, 4)});
  const auto element = [&](int matrix, int row, int column) {
    const uint64_t address = all[8 * matrix + row].word[0];
    if (address % 16 != 0) fail("ldmatrix of a row that is not aligned");
    uint16_t x;
    std::memcpy(&x, shared_at(address) + 2 * column, sizeof x);
    return static_cast<uint32_t>(x);
  };
  const int major = lane() / 4, minor = 2 * (lane() % 4);
  uint32_t registers[4];
  for (int m = 0; m < 4; ++m) {
    registers[m] = transposed ? element(m, minor, major) | element(m, minor + 1, major) << 16
                              : element(m, major, minor) | element(m, major, minor + 1) << 16;
  }
  wait_for_warp();  // other lanes may then overwrite this memory
  for (size_t m = 0; m < 4; ++m) set(operands, m, registers[m]);
}

void arrive(const AsyncCopies::Copy& c) {
  std::memcpy(c.to, c.from, c.n_bytes);
  std::memset(static_cast<std::byte*>(c.to) + c.n_bytes, 0, c.n_zeros);
}

// Half of the copies arrive at once, over what may still be read there, the others at the wait.
void copy_async(Operands operands, size_t n_bytes, size_t n_valid) {
  const auto* from = value<const std::byte*>(operands, 1);
  std::byte* to = shared_at(operand(operands, 0).bits);
  if (reinterpret_cast<uintptr_t>(from) % n_bytes != 0 || reinterpret_cast<uintptr_t>(to) % n_bytes != 0) {
    fail("cp.async of %zu bytes that are not aligned", n_bytes);
  }
  if (n_valid > n_bytes) fail("cp.async of more bytes than there is room for");
  const AsyncCopies::Copy copy{to, from, n_valid, n_bytes - n_valid};
  draw() & 1 ? arrive(copy) : async_copies().open.push_back(copy);
}

void wait_copies(size_t n_pending) {
  AsyncCopies& copies = async_copies();
  copies.unfenced |= copies.groups.size() > n_pending;
  for (; copies.groups.size() > n_pending; copies.groups.pop_front()) {
    for (const AsyncCopies::Copy& c : copies.groups.front()) arrive(c);
  }
}

void pack(Operands operands, uint16_t (*narrow)(float)) {  // the second operand is the low half
  set(operands, 0,
      static_cast<uint32_t>(narrow(value<float>(operands, 2))) |
          static_cast<uint32_t>(narrow(value<float>(operands, 1))) << 16);
}

struct Instruction {
  std::string_view name;
  void (*run)(Operands);
};

constexpr Instruction kInstructions[] = {
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 ",
     [](Operands o) { multiply<2, float>(o, 4, half_element, half_element, true); }},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 ",
     [](Operands o) { multiply<2, float>(o, 4, bfloat_element, bfloat_element, true); }},
    {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 ",  // with an eleventh operand: to a zero
     [](Operands o) { multiply<4, int>(o, 4, byte_element, byte_element, o.size() == 10); }},
    {"mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 ",
     [](Operands o) { multiply<4, int>(o, 4, unsigned_byte_element, byte_element, true); }},
    {"mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 ",
     [](Operands o) { multiply<4, int>(o, 2, byte_element, byte_element, false); }},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16 ", [](Operands o) { load_matrices(o, false); }},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 ", [](Operands o) { load_matrices(o, true); }},
    {"cp.async.cg.shared.global [%0], [%1], 16;", [](Operands o) { copy_async(o, 16, 16); }},
    {"cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;",
     [](Operands o) { copy_async(o, 16, 16); }},
    {"createpolicy.fractional.L2::evict_first.b64 ", [](Operands o) { set(o, 0, uint64_t{0}); }},
    {"cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;",
     [](Operands o) { copy_async(o, 16, value<uint32_t>(o, 2)); }},
    {"cp.async.ca.shared.global [%0], [%1], %2, %3;",
     [](Operands o) { copy_async(o, value<uint32_t>(o, 2), value<uint32_t>(o, 3)); }},
    {"cp.async.commit_group;",
     [](Operands) { async_copies().groups.push_back(std::exchange(async_copies().open, {})); }},
    {"cp.async.wait_group %0;", [](Operands o) { wait_copies(value<uint32_t>(o, 0)); }},
    {"{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 ",
     multiply_by_warpgroup},
    {"wgmma.fence.sync.aligned;", fence_warpgroup},
    {"wgmma.commit_group.sync.aligned;", end_warpgroup_group},
    {"wgmma.wait_group.sync.aligned %0;", wait_warpgroup_groups},
    {"fence.proxy.async.shared::cta;", [](Operands) { async_copies().unfenced = false; }},
    {"griddepcontrol.wait;", [](Operands) { wait_for_previous_kernel(); }},
    {"griddepcontrol.launch_dependents;", [](Operands) {}},
    {"ex2.approx.ftz.f32 ", [](Operands o) { set(o, 0, std::exp2(value<float>(o, 1))); }},
    {"cvt.rn.f16x2.f32 ", [](Operands o) { pack(o, [](float x) { return tandem::fp32_to_fp16(x); }); }},
    {"cvt.rn.bf16x2.f32 ", [](Operands o) { pack(o, [](float x) { return tandem::fp32_to_bf16(x); }); }},
    {"prefetch.global.L2 ", [](Operands o) { static_cast<void>(*value<const volatile char*>(o, 0)); }},
};

}  // namespace

void ptx(std::string_view instruction, std::initializer_list<Operand> operands) {
  for (const Instruction& known : kInstructions) {
    if (instruction.starts_with(known.name)) return known.run(operands);
  }
  fail("unknown instruction: %.*s", static_cast<int>(instruction.size()), instruction.data());
}

}  // namespace emulator
