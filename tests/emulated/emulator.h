// The software GPU: runs the CUDA device's own sources on the host. translate.py rewrites the syntax that
// only nvcc understands, this header is included before every file and defines CUDA's types and intrinsics
// for g++, and the folder include/ replaces the toolkit's headers. See tests/README.md.
//
// The threads of a block are fibers. They run one at a time, in varying order, each until a barrier or a warp
// operation (shuffle, vote, matrix product). Between two barriers of a block its warps run in lockstep or one
// after the other, and blocks run first to last or last to first; so a missing barrier gives different
// results now and then. A kernel whose blocks wait for all others of their grid has at most one for each
// multiprocessor. Streams do nothing until a thread waits for them, and their order varies where no
// event sets it. Device memory and a block's shared memory start full of NaN; inaccessible pages guard device
// memory; asynchronous copies arrive at once or as late as allowed. Misaligned vectors, divergent barriers and ended
// lanes in a shuffle end the program; launches beyond the limits are errors. A kernel that may begin before the one
// before it has ended does so (overlap.h).
//
// It is slow and checks results, not speed: tensor-core sums are in F32 in one fixed order. Several threads
// may use it; the thread that waits for a stream does its work.
#pragma once

#include <bit>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define TANDEM_EMULATED_CUDA
#define TANDEM_CUDA_ARCHS "80-real,89-real,90,120-real"

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct ushort2 {
  unsigned short x, y;
};
struct alignas(8) ushort4 {
  unsigned short x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

struct EmulatedStream;
using cudaStream_t = EmulatedStream*;

namespace emulator {

// ---- Threads ----

struct Position {
  dim3 thread, block, block_dim, grid_dim;
};
inline Position now;  // of the thread that runs

int lane();
void wait_for_block();
void wait_for_warp();
void wait_for_grid();  // all threads of all blocks
// Every lane of the warp gives some words (at most 12) and gets those of all lanes.
struct Words {
  uint64_t word[12];
};
const Words* exchange(unsigned mask,
                      std::initializer_list<uint64_t> words);  // [32], until the lane's next exchange
void* dynamic_shared();
void wait_for_previous_kernel();
void check_launch_bounds(unsigned n_threads);        // more threads may need more registers than there are
void poison_shared(void* variable, size_t n_bytes);  // once per block, by the first thread
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

template <class T>
uint64_t bits_of(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uint64_t>(value);
  } else {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  }
}
template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// ---- Inline PTX ----

struct Operand {
  void* to;  // of an output
  size_t size;
  uint64_t bits;
};
template <class T>
Operand output(T& x) {
  return {&x, sizeof x, 0};
}
template <class T>
Operand in_out(T& x) {
  return {&x, sizeof x, bits_of(x)};
}
template <class T>
Operand input(T x) {
  return {nullptr, sizeof x, bits_of(x)};
}
void ptx(std::string_view instruction, std::initializer_list<Operand> operands);

// ---- Launches ----

struct Shape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool overlapping = false;  // may begin before the kernel before it has ended
  bool cooperative = false;  // all blocks run at once, and may wait for each other

  template <class... P, class... A>
  void launch(void (*kernel)(P...), A&&... arguments) const {
    static_assert((sizeof(P) + ... + 0) <= 32764, "the parameters of a kernel are too large");
    std::tuple<std::decay_t<P>...> values(std::forward<A>(arguments)...);
    enqueue(reinterpret_cast<const void*>(kernel),
            [kernel, values] { std::apply([&](const auto&... v) { kernel(v...); }, values); });
  }
  void enqueue(const void* kernel, std::function<void()> body) const;
};
inline Shape at(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  return {grid, block, shared_bytes, stream, false, false};
}

}  // namespace emulator

inline const dim3& threadIdx = emulator::now.thread;
inline const dim3& blockIdx = emulator::now.block;
inline const dim3& blockDim = emulator::now.block_dim;
inline const dim3& gridDim = emulator::now.grid_dim;

// ---- Intrinsics ----

inline void __syncthreads() {
  emulator::wait_for_block();
}
inline void __syncwarp(unsigned = 0xffffffffu) {
  emulator::wait_for_warp();
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return emulator::from_bits<T>(emulator::exchange(mask, {emulator::bits_of(value)})[from & 31].word[0]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with) {
  return __shfl_sync(mask, value, emulator::lane() ^ with);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  const int from = emulator::lane() + static_cast<int>(by);
  const T other = __shfl_sync(mask, value, from);
  return from < 32 ? other : value;
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  const emulator::Words* all = emulator::exchange(mask, {vote != 0});
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[i].word[0]) << i;
  return bits;
}
inline int __any_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) != 0;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  const emulator::Words* all = emulator::exchange(mask, {value});
  unsigned most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, static_cast<unsigned>(all[i].word[0]));
  return most;
}
template <class T>
T atomicAdd(T* at, T value) {
  return std::exchange(*at, *at + value);
}
// Shared memory is addressed in 32 bits, from the start of the program's image.
extern "C" char __executable_start[];
inline size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<size_t>(static_cast<const char*>(p) - __executable_start);
}
inline void* __cvta_shared_to_generic(size_t address) {
  return __executable_start + address;
}
template <class T>
T __ldcv(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
inline void __threadfence() {}
template <class T>
T __ldg(const T* p) {
  return *p;
}

inline int __ffs(unsigned x) {
  return __builtin_ffs(static_cast<int>(x));
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::lrint(x));
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline void sincospif(float x, float* sine, float* cosine) {
  const double angle = 3.14159265358979323846 * x;
  *sine = static_cast<float>(std::sin(angle));
  *cosine = static_cast<float>(std::cos(angle));
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
