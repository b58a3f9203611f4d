#include "gpu/harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "cpu/cpu_device.h"
#include "ggml-cuda/backend.h"
#include "gguf/quants.h"
#include "support/quantized.h"
#include "support/sim_device.h"

namespace tandem::gpu_test {
namespace {

constexpr std::byte kPoison{0xff};  // NaN in every float dtype

int64_t rows_of(const Tensor& t, const StepShape& shape) {
  return t.extent == Extent::tokens    ? shape.n_tokens
         : t.extent == Extent::outputs ? shape.n_outputs
                                       : t.n_rows;
}

std::span<const std::byte> bytes_of(const auto& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

std::unique_ptr<Device> make_device_under_test(std::string& why) {
  const char* choice = std::getenv("TANDEM_GPU_TESTS_ON");
  if (choice != nullptr && std::string_view(choice) == "simulated") {
    // AMX rounds weights to bf16, which GPUs do not.
    const cpu::Isa isa = std::min(cpu::best_isa(), cpu::Isa::avx512_vnni);
    return std::make_unique<test::SimDevice>(test::SimOptions{.name = "SIM0", .n_threads = 2, .isa = isa});
  }
  FoundDevices found = cuda::backend().find();
  if (!found.devices.empty()) return std::move(found.devices.front());
  why = found.why_none;
  return nullptr;
}

bool on_short_list() {
  if (const char* choice = std::getenv("TANDEM_GPU_TESTS")) return std::string_view(choice) == "some";
#ifdef TANDEM_EMULATED_GPU
  return true;
#else
  return false;
#endif
}

std::vector<float> floats_of(DType dtype, const std::vector<std::byte>& bytes) {
  const DTypeInfo& info = dtype_info(dtype);
  std::vector<float> x(bytes.size() / info.block_bytes * info.block_elements);
  dequantize_row(dtype, bytes.data(), x.data(), static_cast<int64_t>(x.size()));
  return x;
}

double relative_error(std::span<const float> out, std::span<const float> reference, double least) {
  if (out.size() != reference.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    difference += std::pow(static_cast<double>(out[i]) - reference[i], 2);
    norm += std::pow(static_cast<double>(reference[i]), 2);
  }
  norm = std::max(norm, least * least * static_cast<double>(out.size()));
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

OpCase::OpCase(Random& random, const ShapeClass& shape)
    : builder(shape), random_(random), max_tokens_(shape.max_tokens) {}

const Weight* OpCase::keep(Weight weight, std::vector<std::byte> bytes) {
  bytes_.push_back(std::make_unique<std::vector<std::byte>>(std::move(bytes)));
  weight.name = "w" + std::to_string(weights_.size());
  weight.data = bytes_.back()->data();
  weights_.push_back(std::make_unique<Weight>(std::move(weight)));
  return weights_.back().get();
}

const Weight* OpCase::matrix(DType dtype, int64_t n_rows, int64_t n_cols, int64_t n_mats, float deviation) {
  Weight weight;
  weight.dtype = dtype;
  weight.n_mats = n_mats;
  weight.n_rows = n_rows;
  weight.n_cols = n_cols;
  const std::vector<float> values = random_.normals(n_mats * n_rows * n_cols, deviation);
  return keep(std::move(weight), test::quantized(dtype, values));
}

const Weight* OpCase::vector(const std::vector<float>& values, DType dtype) {
  Weight weight;
  weight.dtype = dtype;
  weight.n_rows = 1;
  weight.n_cols = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(weight.n_bytes());
  quantize_row(dtype, values.data(), bytes.data(), weight.n_cols);
  return keep(std::move(weight), std::move(bytes));
}

TensorId OpCase::activation(int64_t n_cols, std::vector<float> values) {
  const TensorId id = builder.embed(matrix(DType::F32, 1, n_cols));  // a placeholder node, never run
  activations_[id] = std::move(values);
  return id;
}

void OpCase::set_cache(const KvLayer& layer, CacheBytes bytes) {
  has_cache_ = true;
  layer_ = layer;
  cache_ = std::move(bytes);
}

void OpCase::finish(TensorId result) {
  result_ = result;
  const TensorId outputs = builder.input(Input::outputs);
  graph_ = builder.finish(builder.gather_outputs(result));
  auto& wanted = inputs_[static_cast<size_t>(Input::outputs)];
  if (wanted.empty()) wanted.assign(static_cast<size_t>(graph_.tensor(outputs).n_cols), 0);
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (!activations_.contains(graph_.nodes[i].output)) nodes_.push_back(static_cast<int32_t>(i));
  }
}

std::string OpCase::why_unsupported(const Device& device) const {
  for (int32_t node : nodes_) {
    const std::string why = device.why_unsupported(graph_, graph_.nodes[static_cast<size_t>(node)]);
    if (!why.empty()) return why;
  }
  return "";
}

// The memory of a case on a device, and its executable.
class OpCase::Running {
 public:
  Running(const OpCase& c, Device& device, const Graph& graph) : case_(c), device_(device), graph_(graph) {
    place_tensors();
    if (c.has_cache_) place_cache();
    executable_ = device.compile(Segment{&graph, c.nodes_, addresses_, kv_});
  }
  ~Running() {
    executable_.reset();
    for (DevicePtr address : owned_) device_.free(address);
  }

  OpResult run(const StepShape& shape) {
    feed();
    device_.run(*executable_, shape);
    OpResult result;
    const Tensor& t = graph_.tensor(case_.result_);
    result.values.resize(static_cast<size_t>(rows_of(t, shape) * t.n_cols));
    device_.copy_out(result.values.data(), addresses_[static_cast<size_t>(t.storage)],
                     result.values.size() * sizeof(float));
    if (case_.has_cache_) {
      result.cache = case_.cache_;
      for_each_pool(result.cache, [&](DevicePtr& pool, std::vector<std::byte>& bytes) {
        device_.copy_out(bytes.data(), pool, bytes.size());
      });
    }
    device_.wait(device_.record());
    return result;
  }

 private:
  DevicePtr take(size_t n_bytes) {
    owned_.push_back(device_.alloc(n_bytes));
    return owned_.back();
  }
  DevicePtr place_weight(const Weight& weight) {
    if (device_.info().host_memory) return const_cast<std::byte*>(weight.data);
    const DevicePtr address = take(device_.weight_bytes(weight));
    device_.upload(address, weight);
    return address;
  }
  void place_tensors() {
    addresses_.assign(graph_.tensors.size(), nullptr);
    for (size_t i = 0; i < addresses_.size(); ++i) {
      const Tensor& t = graph_.tensors[i];
      if (t.storage != static_cast<TensorId>(i)) continue;
      addresses_[i] = t.weight ? place_weight(*t.weight) : take(t.n_bytes());
    }
  }
  void place_cache() {
    kv_.push_back(case_.layer_);
    for_each_pool(case_.cache_, [&](DevicePtr& pool, const auto& bytes) { pool = take(bytes.size()); });
    if (kv_[0].open_of && !device_.info().host_memory) kv_[0].open_table = take(table_bytes());
  }
  size_t table_bytes() const { return static_cast<size_t>(kv_[0].n_blocks) * sizeof(int32_t); }

  // Calls fn(address, bytes) for every pool that has some.
  template <class Cache, class Fn>
  void for_each_pool(Cache& cache, Fn&& fn) {
    KvLayer& layer = kv_[0];
    const auto one = [&](DevicePtr& pool, auto& bytes) {
      if (!bytes.empty()) fn(pool, bytes);
    };
    one(layer.k, cache.k);
    one(layer.v, cache.v);
    one(layer.k_open, cache.k_open);
    one(layer.v_open, cache.v_open);
  }

  // Sets inputs, given activations and the initial cache; NaN elsewhere. Waits until the copies have read
  // host memory.
  void feed() {
    std::vector<std::vector<std::byte>> poison;
    for (size_t i = 0; i < addresses_.size(); ++i) {
      const Tensor& t = graph_.tensors[i];
      if (t.storage != static_cast<TensorId>(i) || t.weight) continue;
      std::span<const std::byte> data;
      if (t.role == Role::input) {
        data = bytes_of(case_.inputs_[static_cast<size_t>(t.input)]);
      } else if (const auto given = case_.activations_.find(t.storage); given != case_.activations_.end()) {
        data = bytes_of(given->second);
      } else {
        data = poison.emplace_back(t.n_bytes(), kPoison);
      }
      ASSERT_LE(data.size(), t.n_bytes());
      device_.copy_in(addresses_[i], data.data(), data.size());
    }
    if (case_.has_cache_) {
      for_each_pool(case_.cache_, [&](DevicePtr& pool, const std::vector<std::byte>& bytes) {
        device_.copy_in(pool, bytes.data(), bytes.size());
      });
      if (kv_[0].open_table) device_.copy_in(kv_[0].open_table, kv_[0].open_of, table_bytes());
    }
    device_.wait(device_.record());
  }

  const OpCase& case_;
  Device& device_;
  const Graph& graph_;
  std::vector<DevicePtr> addresses_, owned_;
  std::vector<KvLayer> kv_;
  std::unique_ptr<Executable> executable_;
};

std::vector<OpResult> OpCase::run(Device& device, const Graph& graph, const StepShape& shape, int n_runs,
                                  const std::function<void()>& before_each) const {
  Running running(*this, device, graph);
  std::vector<OpResult> results;
  for (int i = 0; i < n_runs; ++i) {
    if (before_each) before_each();
    results.push_back(running.run(shape));
  }
  return results;
}

std::vector<OpResult> OpCase::run(Device& device, const StepShape& shape, int n_runs,
                                  const std::function<void()>& before_each) const {
  return run(device, graph_, shape, n_runs, before_each);
}

OpResult OpCase::reference(const StepShape& shape) const {
  const auto device = cpu::make_cpu_device({2, 2, cpu::Isa::scalar});
  return run(*device, graph_, shape, 1).front();
}

OpResult OpCase::exact(const StepShape& shape) const {
  Graph graph = graph_;
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<std::vector<float>> values;
  for (Tensor& t : graph.tensors) {
    if (!t.weight || t.dtype == DType::F32) continue;
    std::vector<float>& floats = values.emplace_back(static_cast<size_t>(t.n_rows * t.n_cols));
    dequantize_row(t.dtype, t.weight->data, floats.data(), t.n_rows * t.n_cols);
    weights.push_back(std::make_unique<Weight>(*t.weight));
    weights.back()->dtype = t.dtype = DType::F32;
    weights.back()->data = reinterpret_cast<const std::byte*>(floats.data());
    t.weight = weights.back().get();
  }
  const auto device = cpu::make_cpu_device({2, 2, cpu::Isa::scalar});
  return run(*device, graph, shape, 1).front();
}

void OpCase::expect_match(Device& device, const StepShape& shape, double tolerance, Rounding rounding) const {
  ASSERT_EQ(why_unsupported(device), "");
  const OpResult out = run(device, shape).front();
  double error = relative_error(out.values, reference(shape).values);
  if (rounding == Rounding::allowed && error >= tolerance) {
    error = std::min(error, relative_error(out.values, exact(shape).values));
  }
  EXPECT_LT(error, tolerance) << shape.n_tokens << " tokens";
}

}  // namespace tandem::gpu_test
