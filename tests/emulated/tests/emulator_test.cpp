// The software GPU itself: mistakes of kernels that it must show.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/fp16.h"
#include "emulated/gpu.h"
#include "ggml-cuda/wgmma.cuh"

namespace tandem::gpu_test {
namespace {

constexpr int kCount = 64;

void wait_for_previous() {
  ::emulator::ptx("griddepcontrol.wait;", {});
}

void fill(float* to, float value) {
  to[threadIdx.x] = value;
}
void copy_after_waiting(const float* from, float* to) {
  wait_for_previous();
  to[threadIdx.x] = from[threadIdx.x];
}
void copy_before_waiting(const float* from, float* to) {
  const float x = from[threadIdx.x];
  wait_for_previous();
  to[threadIdx.x] = x;
}
void write_before_waiting(const float*, float* to) {
  to[threadIdx.x] = 1.0f;
  wait_for_previous();
}
void wait_in_half_the_threads(const float* from, float* to) {
  if (threadIdx.x >= kCount / 2) return;
  wait_for_previous();
  to[threadIdx.x] = from[threadIdx.x];
}
// Warps that wait at different places of the block's work.
void copy_in_turn(const float* from, float* to) {
  if (threadIdx.x < 32) wait_for_previous();
  __syncthreads();
  if (threadIdx.x >= 32) wait_for_previous();
  to[threadIdx.x] = from[threadIdx.x];
}
// Every block adds up what all have written, round after round, with shared memory of its own.
void add_over_the_grid(float* values, float* sums, int n_rounds) {
  static float own[1];
  ::emulator::poison_shared(own, sizeof own);
  float* memory = static_cast<float*>(::emulator::dynamic_shared());
  if (threadIdx.x == 0) own[0] = memory[0] = static_cast<float>(blockIdx.x + 1);
  for (int round = 0; round < n_rounds; ++round) {
    __syncthreads();
    if (threadIdx.x == 0) values[blockIdx.x] = own[0];
    ::emulator::wait_for_grid();
    float sum = 0.0f;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += values[i];
    ::emulator::wait_for_grid();
    if (threadIdx.x == 0) own[0] = sum + memory[0];
  }
  __syncthreads();
  if (threadIdx.x == 1) sums[blockIdx.x] = own[0];
}
void wait_for_the_grid_in_one_block(float*) {
  if (blockIdx.x == 1) ::emulator::wait_for_grid();
}
void wait_for_the_grid_in_half_the_threads(float*) {
  if (threadIdx.x < kCount / 2) ::emulator::wait_for_grid();
}
// c [64, 128] = a [64, 16] b [128, 16]^T + c, of BF16: columns from 16 on of rows of 64 in shared memory.
enum class Mistake { none, no_fence_of_copies, no_fence, no_wait };
constexpr int kRows = 64, kTokens = 128, kColumns = 16, kRowColumns = 64, kSwizzled = 1024;
void multiply_by_warpgroup(const uint16_t* a, const uint16_t* b, float* c, Mistake mistake) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  auto* memory = static_cast<std::byte*>(::emulator::dynamic_shared()) + kSwizzled;
  for (int part = 0; part < 8; ++part) {  // of eight columns
    std::byte* to = memory + 128 * thread + (part ^ thread % 8) * 16;
    cuda::copy_async<16>(static_cast<uint32_t>(__cvta_generic_to_shared(to)),
                         reinterpret_cast<const std::byte*>(b + kRowColumns * thread + 8 * part), true);
  }
  cuda::end_copy_group();
  cuda::wait_copy_groups<0>();
  if (mistake != Mistake::no_fence_of_copies) cuda::fence_shared_for_wgmma();
  __syncthreads();
  uint32_t fragment[4];
  for (int i = 0; i < 4; ++i)
    std::memcpy(fragment + i, a + kColumns * (row + i % 2 * 8) + i / 2 * 8 + 2 * (lane % 4),
                sizeof *fragment);
  float sums[64];
  const auto at = [&](int e) {
    return c + kTokens * (row + e % 4 / 2 * 8) + e / 4 * 8 + 2 * (lane % 4) + e % 2;
  };
  for (int e = 0; e < 64; ++e) sums[e] = *at(e);
  if (mistake != Mistake::no_fence) cuda::wgmma_fence();
  cuda::multiply_64(sums, fragment,
                    cuda::swizzled_matrix(static_cast<uint32_t>(__cvta_generic_to_shared(memory))) + 2, true);
  cuda::end_wgmma_group();
  if (mistake != Mistake::no_wait) cuda::wait_wgmma_groups<0>();
  for (int e = 0; e < 64; ++e) *at(e) = sums[e];
}

void of_32_threads(float* to) {
  ::emulator::check_launch_bounds(32);
  to[threadIdx.x] = 1.0f;
}
void with_static_memory(float* to) {
  static float memory[kCount];
  ::emulator::poison_shared(memory, sizeof memory);
  to[threadIdx.x] = 1.0f;
}

class Emulator : public testing::Test {
 protected:
  void SetUp() override {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    for (float** memory : {&a_, &b_}) cudaMalloc(reinterpret_cast<void**>(memory), kCount * sizeof(float));
  }
  void TearDown() override {
    for (float* memory : {a_, b_}) cudaFree(memory);
    cudaStreamDestroy(stream_);
  }

  template <class Kernel, class... A>
  void launch_early(Kernel kernel, A... arguments) {
    cudaLaunchAttribute attribute{cudaLaunchAttributeProgrammaticStreamSerialization, {1}};
    const cudaLaunchConfig_t config{1, kCount, 0, stream_, &attribute, 1};
    ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
  }
  template <class... P, class... A>
  void launch_together(unsigned n_blocks, size_t shared_bytes, void (*kernel)(P...), A... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    const cudaLaunchConfig_t config{n_blocks, kCount, shared_bytes, stream_, &attribute, 1};
    cudaLaunchKernelEx(&config, kernel, arguments...);
  }
  void fill_a(float value) { emulator::at(1, kCount, 0, stream_).launch(fill, a_, value); }
  // What multiply_by_warpgroup makes of c = 1, and the product alone.
  void run_warpgroup(Mistake mistake, std::vector<float>* c, std::vector<float>* product = nullptr) {
    std::vector<uint16_t> a(kRows * kColumns), b(kTokens * kRowColumns);
    for (size_t i = 0; i < a.size(); ++i) a[i] = fp32_to_bf16(static_cast<float>(i * 7 % 23) - 11.0f);
    for (size_t i = 0; i < b.size(); ++i) b[i] = fp32_to_bf16(static_cast<float>(i * 5 % 31) - 15.0f);
    c->assign(kRows * kTokens, 1.0f);
    const auto on_device = [&](auto& values) {
      void* memory = nullptr;
      cudaMalloc(&memory, values.size() * sizeof values[0]);
      cudaMemcpyAsync(memory, values.data(), values.size() * sizeof values[0], cudaMemcpyHostToDevice,
                      stream_);
      return memory;
    };
    const auto *a_memory = static_cast<uint16_t*>(on_device(a)),
               *b_memory = static_cast<uint16_t*>(on_device(b));
    auto* c_memory = static_cast<float*>(on_device(*c));
    emulator::at(1, 128, 2 * kSwizzled + 128 * kTokens, stream_)
        .launch(multiply_by_warpgroup, a_memory, b_memory, c_memory, mistake);
    cudaMemcpyAsync(c->data(), c_memory, c->size() * sizeof(float), cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
    for (const void* memory : {static_cast<const void*>(a_memory), static_cast<const void*>(b_memory),
                               static_cast<const void*>(c_memory)})
      cudaFree(const_cast<void*>(memory));
    if (!product) return;
    product->assign(kRows * kTokens, 0.0f);
    for (size_t i = 0; i < product->size(); ++i) {
      for (size_t k = 0; k < kColumns; ++k)
        (*product)[i] += bf16_to_fp32(a[i / kTokens * kColumns + k]) *
                         bf16_to_fp32(b[i % kTokens * kRowColumns + kColumns + k]);
    }
  }
  std::vector<float> values_of_b() {
    std::vector<float> values(kCount);
    cudaMemcpyAsync(values.data(), b_, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
    return values;
  }

  cudaStream_t stream_ = nullptr;
  float *a_ = nullptr, *b_ = nullptr;
};

TEST_F(Emulator, KernelsThatWaitReadWhatWasWritten) {
  for (const auto kernel : {copy_after_waiting, copy_in_turn}) {
    fill_a(5.0f);
    launch_early(kernel, a_, b_);
    EXPECT_EQ(values_of_b(), std::vector<float>(kCount, 5.0f));
    fill_a(6.0f);
  }
}

TEST_F(Emulator, KernelsThatReadBeforeTheyWaitReadNaN) {
  fill_a(5.0f);
  launch_early(copy_before_waiting, a_, b_);
  for (const float x : values_of_b()) EXPECT_TRUE(std::isnan(x));
}

// The kernel in between may have begun early too.
TEST_F(Emulator, AlsoWhatTheKernelBeforeThatWrites) {
  fill_a(5.0f);
  launch_early(copy_after_waiting, a_, b_);
  launch_early(copy_before_waiting, a_, b_);
  for (const float x : values_of_b()) EXPECT_TRUE(std::isnan(x));
}

TEST_F(Emulator, WhatLiesBeforeAKernelThatDoesNotBeginEarlyIsThere) {
  fill_a(5.0f);
  emulator::at(1, kCount, 0, stream_).launch(fill, b_, 1.0f);
  launch_early(copy_before_waiting, a_, b_);
  EXPECT_EQ(values_of_b(), std::vector<float>(kCount, 5.0f));
}

TEST_F(Emulator, BlocksWaitForTheirGrid) {
  const auto n = static_cast<unsigned>(emulator::gpu().n_multiprocessors);
  launch_together(n, sizeof(float), add_over_the_grid, a_, b_, 3);
  std::vector<float> own(n);
  for (unsigned i = 0; i < n; ++i) own[i] = static_cast<float>(i + 1);
  for (int round = 0; round < 3; ++round) {
    float sum = 0.0f;
    for (const float x : own) sum += x;
    for (unsigned i = 0; i < n; ++i) own[i] = sum + static_cast<float>(i + 1);
  }
  std::vector<float> sums = values_of_b();
  sums.resize(n);
  EXPECT_EQ(sums, own);
}

using EmulatorDeathTest = Emulator;

TEST_F(EmulatorDeathTest, GridsThatWaitForEver) {
  const auto run = [&](unsigned n_blocks, auto kernel) {
    launch_together(n_blocks, 0, kernel, a_);
    values_of_b();
  };
  EXPECT_DEATH(run(2, wait_for_the_grid_in_one_block), "ends while others wait");
  EXPECT_DEATH(run(1, wait_for_the_grid_in_half_the_threads), "some threads of a block wait for the grid");
  const auto not_together = [&] {
    emulator::at(2, kCount, sizeof(float), stream_).launch(add_over_the_grid, a_, b_, 1);
    values_of_b();
  };
  EXPECT_DEATH(not_together(), "waits for itself");
  const auto n = static_cast<unsigned>(emulator::gpu().n_multiprocessors);
  launch_together(n + 1, sizeof(float), add_over_the_grid, a_, b_, 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorCooperativeLaunchTooLarge);
}

TEST_F(EmulatorDeathTest, WritingBeforeWaiting) {
  const auto run = [&] {
    fill_a(5.0f);
    launch_early(write_before_waiting, a_, b_);
    values_of_b();
  };
  EXPECT_DEATH(run(), "writes to memory before it waits");
}

TEST_F(EmulatorDeathTest, ThreadsThatDoNotWait) {
  const auto run = [&] {
    fill_a(5.0f);
    launch_early(wait_in_half_the_threads, a_, b_);
    values_of_b();
  };
  EXPECT_DEATH(run(), "ends before it has waited");
}

TEST_F(EmulatorDeathTest, MoreThreadsThanTheKernelIsCompiledFor) {
  const auto run = [&] {
    emulator::at(1, kCount, 0, stream_).launch(of_32_threads, b_);
    values_of_b();
  };
  EXPECT_DEATH(run(), "a block of 64 threads; the kernel is compiled for 32");
}

TEST_F(Emulator, ProductsOfWarpgroups) {
  std::vector<float> c, product;
  run_warpgroup(Mistake::none, &c, &product);
  for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], 1.0f + product[i]) << i;
}

TEST_F(Emulator, ProductsOfWarpgroupsThatAreNotWaitedFor) {
  std::vector<float> c;
  run_warpgroup(Mistake::no_wait, &c);
  EXPECT_EQ(c, std::vector<float>(kRows * kTokens, 1.0f));
}

TEST_F(EmulatorDeathTest, ProductsOfWarpgroupsWithoutFences) {
  std::vector<float> c;
  EXPECT_DEATH(run_warpgroup(Mistake::no_fence_of_copies, &c), "behind copies without a fence");
  EXPECT_DEATH(run_warpgroup(Mistake::no_fence, &c), "without wgmma.fence");
}

TEST_F(EmulatorDeathTest, StaticAndDynamicSharedMemoryTogether) {
  emulator::at(1, kCount, (48 << 10) - sizeof(float) * kCount, stream_).launch(with_static_memory, b_);
  EXPECT_EQ(values_of_b(), std::vector<float>(kCount, 1.0f));
  const auto run = [&] {
    emulator::at(1, kCount, 48 << 10, stream_).launch(with_static_memory, b_);
    values_of_b();
  };
  EXPECT_DEATH(run(), "bytes of shared memory");
}

TEST_F(EmulatorDeathTest, WaitsThatTakeACore) {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  EXPECT_DEATH(cudaEventSynchronize(event), "cudaEventBlockingSync");
  cudaEventDestroy(event);
}

TEST_F(EmulatorDeathTest, LoadingAKernelWhileAGraphIsRecorded) {
  cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  cudaFuncAttributes attributes;
  const auto unknown = [](float* to) { to[0] = 0.0f; };
  void (*kernel)(float*) = unknown;
  EXPECT_DEATH(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
               "loaded while a graph is recorded");
  cudaGraph_t graph;
  cudaStreamEndCapture(stream_, &graph);
  cudaGraphDestroy(graph);
}

TEST_F(Emulator, SharedMemoryThatTheGpuDoesNotHave) {
  const size_t most = emulator::gpu().max_shared();
  EXPECT_EQ(cudaFuncSetAttribute(of_32_threads, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(most)),
            cudaSuccess);
  EXPECT_NE(cudaFuncSetAttribute(of_32_threads, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(most + 1)),
            cudaSuccess);
  cudaGetLastError();
}

}  // namespace
}  // namespace tandem::gpu_test
