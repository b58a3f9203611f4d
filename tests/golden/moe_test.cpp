// A whole mixture-of-experts model: the scalar kernels token by token against every ISA, micro-batch, number
// of threads, and split over a simulated device.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/gguf_bytes.h"
#include "support/sim_device.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

class Moe : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    test::TinyShape shape;
    shape.n_expert = 7;
    shape.n_expert_used = 3;
    shape.dtype = GetParam();
    shape.n_ff = 96;
    path_ = directory_.path("moe.gguf");
    test::tiny_llama(shape, 3).write(path_);
    model_ = Model::load(path_);
    std::mt19937 rng(5);
    for (int i = 0; i < 60; ++i) ids_.push_back(static_cast<int32_t>(3 + rng() % 290));
  }

  std::vector<float> logits(const std::vector<Device*>& devices, int64_t n_ubatch, Placement placement = {}) {
    EngineOptions options;
    options.context.n_ubatch = n_ubatch;
    options.context.all_logits = true;
    options.context.k_dtype = options.context.v_dtype = DType::F32;
    options.placement = std::move(placement);
    Session session(*model_, devices, options);
    std::vector<float> all;
    session.evaluate(ids_, [&](int64_t, int64_t, std::span<const float> row) {
      all.insert(all.end(), row.begin(), row.end());
    });
    return all;
  }

  // Tokens with a logit that differs by the tolerance or more.
  size_t n_different(const std::vector<float>& a, const std::vector<float>& b, float tolerance) const {
    const size_t n_vocab = a.size() / ids_.size();
    size_t n = 0;
    for (size_t token = 0; token < ids_.size(); ++token) {
      float worst = 0;
      for (size_t i = token * n_vocab; i < (token + 1) * n_vocab; ++i)
        worst = std::max(worst, std::fabs(a[i] - b[i]));
      n += worst >= tolerance;
    }
    return n;
  }

  test::TempDir directory_;
  std::string path_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
};

TEST_P(Moe, ThreadsMicroBatchesIsasAndDevicesAgree) {
  const auto reference_device = cpu::make_cpu_device({1, 1, cpu::Isa::scalar});
  const std::vector<float> reference = logits({reference_device.get()}, 1);
  // The 8-bit activations of a quantized model may round differently if a float differs in its last bit.
  const float tolerance = GetParam() == DType::F32 ? 2e-4f : 3e-2f;
  for (cpu::Isa isa : cpu::supported_isas()) {
    for (int64_t n_ubatch : {1, 3, 32, 512}) {
      std::vector<float> first;
      for (int n_threads = 1; n_threads <= 3; ++n_threads) {
        const auto device = cpu::make_cpu_device({n_threads, n_threads, isa});
        const std::vector<float> all = logits({device.get()}, n_ubatch);
        if (n_threads == 1) {
          first = all;
          // Tiles of bf16 round activations less than 8 bits do, and otherwise: a token near a tie may take another
          // expert.
          const bool tiles = isa == cpu::Isa::avx512_amx && n_ubatch >= 32 && GetParam() != DType::F32;
          EXPECT_LE(n_different(all, reference, tiles ? 0.2f : tolerance), tiles ? ids_.size() / 10 : 0)
              << cpu::isa_name(isa) << " -ub " << n_ubatch;
        }
        EXPECT_EQ(all, first) << cpu::isa_name(isa) << " -ub " << n_ubatch << " -t " << n_threads;
      }
    }
  }
  const auto host = cpu::make_cpu_device({1, 1});
  test::SimDevice sim({});
  Placement placement = Placement::host_only(2);
  const GpuId gpu(0);
  placement.layers[1] = {Resident{gpu}, Resident{gpu}, ResidentKv{gpu}};
  EXPECT_EQ(logits({host.get(), &sim}, 32, placement), logits({host.get()}, 32));
}

INSTANTIATE_TEST_SUITE_P(DTypes, Moe, testing::Values(DType::F32, DType::Q8_0, DType::Q4_0, DType::MXFP4),
                         [](const auto& param_info) { return std::string(dtype_name(param_info.param)); });

}  // namespace
}  // namespace tandem
