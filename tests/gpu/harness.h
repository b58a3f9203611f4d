// Shared by the tests of GPUs: the device under test, and graphs of one op or a few with fresh random inputs
// that run on it and on the CPU's scalar reference, through the Device interface.
//
// The device is the first GPU; without one every test is skipped. TANDEM_GPU_TESTS_ON=simulated uses the
// simulated device instead, to test the tests. emulated_gpu_tests runs the same kernels on the host (see
// tests/README.md).
//
// TANDEM_GPU_TESTS=some shortens the lists of sizes, for slow runs: sanitizers, and the emulator, where it is
// the default (TANDEM_GPU_TESTS=all for the full lists).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/device.h"
#include "graph/builder.h"
#include "ops/row_harness.h"
#include "support/dtypes.h"

namespace tandem::gpu_test {

using cpu::test::Random;

// Bounds on ||out - reference|| / ||reference||.
inline constexpr double kF32 = 1e-3;      // sums in F32
inline constexpr double kRounded = 5e-3;  // inputs rounded to F16 or to 8 bits on the way
inline constexpr double kRow = 1e-5;      // row ops: a few F32 operations per element

// Returns null, with the reason in `why`, if there is no device.
std::unique_ptr<Device> make_device_under_test(std::string& why);

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    device_ = make_device_under_test(why);
    if (!device_) GTEST_SKIP() << "no device to test: " << why;
  }

  std::unique_ptr<Device> device_;
  Random random_;
};

// Shortens a list to every step-th entry, starting with the first.
bool on_short_list();
template <class T>
std::vector<T> some_of(std::vector<T> all, size_t step) {
  if (!on_short_list()) return all;
  std::vector<T> some;
  for (size_t i = 0; i < all.size(); i += step) some.push_back(all[i]);
  return some;
}

using test::quantizable_dtypes;

// On the short list without most of the formats that differ in how a block is read alone.
inline std::vector<DType> products_dtypes() {
  std::vector<DType> dtypes = quantizable_dtypes();
  if (!on_short_list()) return dtypes;
  std::erase_if(dtypes, [](DType dtype) {
    return dtype == DType::IQ1_S || dtype == DType::IQ1_M || dtype == DType::IQ2_XXS ||
           dtype == DType::IQ3_S || dtype == DType::TQ2_0 || dtype == DType::Q1_0;
  });
  return dtypes;
}

// The difference as a part of the reference, both as root mean squares. `least` is the least reference to compare with:
// sums of a few numbers of that size cancel now and then, and what is left of one has few right digits.
double relative_error(std::span<const float> out, std::span<const float> reference, double least = 0);

// A cache of one layer, as bytes.
struct CacheBytes {
  std::vector<std::byte> k, v;
  std::vector<std::byte> k_open, v_open;  // of grouped dtypes
  bool operator==(const CacheBytes&) const = default;
};

struct OpResult {
  std::vector<float> values;  // rows of the tensor passed to finish()
  CacheBytes cache;
};

// The elements of rows of a cache.
std::vector<float> floats_of(DType dtype, const std::vector<std::byte>& bytes);

// A graph under test with its inputs.
class OpCase {
 public:
  OpCase(Random& random, const ShapeClass& shape);

  GraphBuilder builder;

  // Normally distributed random values, [n_mats * n_rows, n_cols].
  const Weight* matrix(DType dtype, int64_t n_rows, int64_t n_cols, int64_t n_mats = 1,
                       float deviation = 0.1f);
  const Weight* vector(const std::vector<float>& values, DType dtype = DType::F32);
  // An input of the graph under test: [max_tokens, n_cols] random floats, or the given values.
  TensorId activation(int64_t n_cols, float deviation = 1.0f) {
    return activation(n_cols, random_.normals(max_tokens_ * n_cols, deviation));
  }
  TensorId activation(int64_t n_cols, std::vector<float> values);
  void set_input(Input which, std::vector<int32_t> values) {
    inputs_[static_cast<size_t>(which)] = std::move(values);
  }
  const std::vector<int32_t>& input(Input which) const { return inputs_[static_cast<size_t>(which)]; }
  // The cache of layer 0; the layer's addresses are ignored, but that of its table of open blocks, which stays in use.
  void set_cache(const KvLayer& layer, CacheBytes bytes);

  // Ends the graph; `result` is the tensor to compare. For a graph of only kv_write, any activation will do.
  void finish(TensorId result);
  const Graph& graph() const { return graph_; }
  Graph& graph_to_change() { return graph_; }  // what the builder does not set

  // Why the device cannot run it, or empty.
  std::string why_unsupported(const Device& device) const;
  // Compiles once and runs n times from the same inputs; returns the result of every run. Unwritten values
  // are NaN. Calls `before_each` before every run.
  std::vector<OpResult> run(Device& device, const StepShape& shape, int n_runs = 1,
                            const std::function<void()>& before_each = {}) const;
  OpResult reference(const StepShape& shape) const;
  // The same with the weights dequantized to F32, so that inputs are not rounded.
  OpResult exact(const StepShape& shape) const;

  // Checks the device's result against the reference. Rounding::allowed also accepts the exact result,
  // because a device need not round like the reference.
  enum class Rounding { as_reference, allowed };
  void expect_match(Device& device, const StepShape& shape, double tolerance,
                    Rounding rounding = Rounding::as_reference) const;

 private:
  class Running;
  std::vector<OpResult> run(Device& device, const Graph& graph, const StepShape& shape, int n_runs,
                            const std::function<void()>& before_each = {}) const;
  const Weight* keep(Weight weight, std::vector<std::byte> bytes);

  Random& random_;
  int64_t max_tokens_;
  Graph graph_;
  TensorId result_ = kNoTensor;
  std::vector<int32_t> nodes_;  // those under test
  std::map<TensorId, std::vector<float>> activations_;
  std::array<std::vector<int32_t>, kInputCount> inputs_;
  bool has_cache_ = false;
  KvLayer layer_;
  CacheBytes cache_;
  std::vector<std::unique_ptr<Weight>> weights_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
};

}  // namespace tandem::gpu_test
