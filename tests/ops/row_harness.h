// Shared by the tests of the CPU's row and attention ops: kernels by ISA, fresh random inputs whose seed is
// printed with a failure, and a graph of one op with its memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/attention_kernels.h"
#include "cpu/compiled_op.h"
#include "cpu/fusions.h"
#include "cpu/isa.h"
#include "cpu/row_kernels.h"
#include "gguf/kivi.h"
#include "graph/builder.h"

namespace tandem::cpu::test {

inline const RowKernels& rows_of(Isa isa) {
  return kernels(isa).rows;
}

inline const AttentionKernels& attention_of(Isa isa) {
  return kernels(isa).attention;
}

// Whether an instruction set rounds the weights and values of this attention to bf16.
inline bool rounds_to_bf16(Isa isa, const AttentionCall& call) {
  return (isa == Isa::avx512_bf16 && avx512_bf16::takes(call)) ||
         (isa == Isa::avx512_amx && avx512_amx::takes(call));
}

// Allowed difference of attention, relative to the largest result. Weights and values in bf16 are off by up to 2^-8
// each, and so is a sum of rounded weights. With few queries vector kernels multiply the codes of quantized types with 16 bits of
// query and weight: the rounding of a query's columns, 2^-16 of their greatest, adds up to 2e-5 in a score (one
// deviation) and so in a weight. Of types with codes that begin at 0, KIVI's with one scale for all columns, three times as much.
inline double attention_tolerance(Isa isa, const AttentionCall& call) {
  const auto has_min = [](DType dtype) { return dtype == DType::Q4_1 || dtype == DType::Q5_1; };
  const auto coded = [&](DType dtype) {
    return dtype == DType::Q8_0 || dtype == DType::Q5_0 || dtype == DType::Q4_0 || dtype == DType::IQ4_NL ||
           has_min(dtype);
  };
  if (rounds_to_bf16(isa, call)) return 0x1.8p-7;
  if (isa >= Isa::avx512_vnni && is_kivi(call.k_dtype) && is_kivi(call.v_dtype)) return 6e-4;
  const bool codes = coded(call.k_dtype) && (call.values_in_keys || coded(call.v_dtype));
  if (isa == Isa::scalar || !codes) return 1e-5;
  return has_min(call.k_dtype) || has_min(call.v_dtype) ? 6e-4 : 2e-4;
}

// Random numbers of a test, different in every run unless TANDEM_TEST_SEED is set.
class Random {
 public:
  Random()
      : seed_(pick_seed()),
        trace_(__FILE__, __LINE__, "TANDEM_TEST_SEED=" + std::to_string(seed_)),
        engine_(seed_) {}

  float normal(float deviation = 1.0f) { return std::normal_distribution<float>(0.0f, deviation)(engine_); }
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  std::vector<float> normals(int64_t n, float deviation = 1.0f) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = normal(deviation);
    return x;
  }
  template <class T>
  void shuffle(std::vector<T>& x) {
    std::shuffle(x.begin(), x.end(), engine_);
  }

 private:
  static uint32_t pick_seed() {
    const char* given = std::getenv("TANDEM_TEST_SEED");
    return given ? static_cast<uint32_t>(std::stoul(given)) : std::random_device()();
  }

  uint32_t seed_;
  testing::ScopedTrace trace_;
  std::mt19937 engine_;
};

// Memory of the tensors of a small graph on the CPU, and its compiled nodes.
class OpBench {
 public:
  explicit OpBench(const ShapeClass& shape) : builder(shape) {}

  GraphBuilder builder;
  std::vector<KvLayer> kv;

  // A weight with these floats.
  const Weight* weight(std::vector<float> values, int64_t n_rows = 1) {
    values_.push_back(std::move(values));
    auto w = std::make_unique<Weight>();
    w->name = "w" + std::to_string(weights_.size());
    w->n_rows = n_rows;
    w->n_cols = static_cast<int64_t>(values_.back().size()) / n_rows;
    w->data = reinterpret_cast<const std::byte*>(values_.back().data());
    weights_.push_back(std::move(w));
    return weights_.back().get();
  }
  const Weight* raw_weight(DType dtype, std::vector<std::byte> bytes, int64_t n_rows, int64_t n_cols) {
    bytes_.push_back(std::move(bytes));
    weights_.push_back(
        std::make_unique<Weight>(Weight{"raw", dtype, 1, n_rows, n_cols, bytes_.back().data()}));
    return weights_.back().get();
  }

  // An activation without inputs: the result of an embedding, filled by hand.
  TensorId activation(int64_t n_cols) {
    return builder.embed(weight(std::vector<float>(static_cast<size_t>(n_cols)), 1));
  }

  void finish(TensorId last) {
    graph = builder.finish(builder.gather_outputs(last));
    memory_.resize(graph.tensors.size());
    addresses_.assign(graph.tensors.size(), nullptr);
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      const Tensor& t = graph.tensors[i];
      if (t.storage != static_cast<TensorId>(i)) continue;
      if (t.weight != nullptr) {
        addresses_[i] = const_cast<std::byte*>(t.weight->data);
        continue;
      }
      memory_[i].resize(t.n_bytes() / sizeof(float) + 16, std::nanf(""));
      addresses_[i] = reinterpret_cast<std::byte*>(memory_[i].data());
    }
    for (size_t i = 0; i < graph.nodes.size(); ++i) nodes_.push_back(static_cast<int32_t>(i));
  }

  template <class T = float>
  T* data(TensorId id) {
    return reinterpret_cast<T*>(addresses_[static_cast<size_t>(graph.tensor(id).storage)]);
  }
  int32_t* input(Input which) { return data<int32_t>(graph.inputs[static_cast<size_t>(which)]); }

  // Runs the last node but the final gather_rows (or any other) with some threads.
  void run(Isa isa, const StepShape& shape, int n_threads, size_t node_index) {
    run_nodes(isa, shape, n_threads, node_index, 1);
  }
  // Runs some nodes as the device compiles them together; returns the number of barriers.
  uint32_t run_nodes(Isa isa, const StepShape& shape, int n_threads, size_t first, size_t n) {
    const Kernels kernels{isa, cpu::kernels(isa).linear, attention_of(isa), rows_of(isa),
                          cpu::kernels(isa).sparse};
    const Segment segment{&graph, std::span(nodes_).subspan(first, n), addresses_, kv};
    ThreadPool pool(n_threads);
    for (const CompiledOpPtr& op : compile_ops(CompileContext{{segment}, kernels, n_threads})) {
      run_op(*op, shape, pool);
    }
    return pool.n_barriers();
  }
  void run(Isa isa, const StepShape& shape, int n_threads = 1) {
    run(isa, shape, n_threads, graph.nodes.size() - 2);
  }

  Graph graph;

 private:
  static void run_op(const CompiledOp& op, const StepShape& shape, ThreadPool& pool) {
    std::vector<std::byte> memory(op.shared_bytes + 64 +
                                  static_cast<size_t>(pool.n_threads()) * (op.scratch_bytes + 64));
    std::fill(memory.begin(), memory.end(), std::byte{0xff});  // NaN, to detect reads before a write
    const auto aligned = [&](size_t offset) {
      return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data() + offset) + 63) / 64 *
                                          64);
    };
    pool.run([&](Worker& worker) {
      RunContext run{shape, aligned(0), nullptr};
      run.scratch =
          aligned(op.shared_bytes + 64 + static_cast<size_t>(worker.index()) * (op.scratch_bytes + 64));
      if (op.shared_bytes == 0) run.shared = nullptr;
      op.run(worker, run);
    });
  }

  std::vector<std::vector<float>> values_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::unique_ptr<Weight>> weights_;
  std::vector<std::vector<float>> memory_;
  std::vector<DevicePtr> addresses_;
  std::vector<int32_t> nodes_;
};

}  // namespace tandem::cpu::test
