// Whole models split between the CPU and a GPU at every layer, with the cache beside the layer and on the
// host: the golden text of a trained model, and random models of every dtype against the CPU alone.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "device/cache_dtypes.h"
#include "engine/session.h"
#include "gpu/harness.h"
#include "support/gguf_bytes.h"
#include "support/shared_data.h"
#include "support/tiny_model.h"

namespace tandem::gpu_test {
namespace {

class GpuSplit : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    // AMX rounds weights to bf16, which GPUs do not.
    host_ = cpu::make_cpu_device({2, 2, std::min(cpu::best_isa(), cpu::Isa::avx512_vnni)});
  }

  std::vector<Device*> both() const { return {host_.get(), device_.get()}; }

  // Calls check(placement flags) for every -ngl with and without -nkvo.
  template <class Fn>
  void for_every_split(const Model& model, Fn&& check) {
    const int64_t all = model.hparams().n_layer + 1;
    for (int64_t n = 0; n <= all; ++n) {
      for (bool kv_on_host : {false, true}) {
        if (on_short_list() && kv_on_host != (n == all / 2)) continue;
        SCOPED_TRACE("-ngl " + std::to_string(n) + (kv_on_host ? " -nkvo" : ""));
        OffloadOptions flags;
        flags.n_gpu_layers = n;
        flags.kv_on_host = on_or_off(kv_on_host);
        check(flags);
        if (HasFatalFailure()) return;
      }
    }
  }

  std::unique_ptr<Device> host_;
};

// ---- stories260K ----

struct Golden {
  std::vector<int32_t> ids;                      // 5 of the prompt, then 60 greedy ones
  std::map<int64_t, std::vector<float>> logits;  // at some positions
};
constexpr size_t kPrompt = 5;

Golden read_golden(const std::filesystem::path& path) {
  const auto json = nlohmann::json::parse(std::ifstream(path));
  Golden golden;
  golden.ids = json.at("ids").get<std::vector<int32_t>>();
  for (const auto& [position, row] : json.at("logits_at").items()) {
    golden.logits[std::stoll(position)] = row.get<std::vector<float>>();
  }
  return golden;
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Continues the prompt token by token; also checks the logits at the positions in the golden file.
void expect_golden_text(Session& session, const Golden& golden) {
  std::span<const float> logits = session.append(std::span(golden.ids).first(kPrompt));
  for (size_t p = kPrompt; p < golden.ids.size(); ++p) {
    const auto known = golden.logits.find(static_cast<int64_t>(p) - 1);
    if (known != golden.logits.end()) {
      EXPECT_LT(relative_error(logits, known->second), kF32) << "position " << p - 1;
    }
    const int32_t next = argmax(logits);
    ASSERT_EQ(next, golden.ids[p]) << "position " << p;
    logits = session.append(std::span(&next, 1));
  }
}

TEST_F(GpuSplit, StoriesAreTheGoldenOnes) {
  const auto path = test::shared_data("stories260K.gguf");
  TANDEM_NEED_SHARED(path);
  const auto model = Model::load(path.string());
  const Golden golden = read_golden(test::shared_data("stories260K.golden.json"));
  for_every_split(*model, [&](const OffloadOptions& flags) {
    for (DType cache : some_of<DType>({DType::F16, DType::F32}, 2)) {
      SCOPED_TRACE(dtype_name(cache));
      EngineOptions options;
      options.context.n_ctx = 128;
      options.context.k_dtype = options.context.v_dtype = cache;
      options.offload = flags;
      Session session(*model, both(), options);
      expect_golden_text(session, golden);
    }
  });
}

// ---- Random models ----

// Logits after a prompt in three micro-batches, and after each of some single tokens.
std::vector<float> logits_of(Session& session) {
  std::vector<float> all;
  const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
  std::vector<int32_t> prompt;
  for (int i = 0; i < 37; ++i) prompt.push_back(3 + i * 7 % 290);
  add(session.append(prompt));
  for (int32_t id : {5, 280, 33, 90}) add(session.append(std::span(&id, 1)));
  return all;
}

// After a prompt and many single tokens.
std::vector<float> long_logits_of(Session& session) {
  std::vector<float> all = logits_of(session);
  std::vector<int32_t> more;
  for (int i = 0; i < 70; ++i) more.push_back(5 + i * 11 % 280);
  for (std::span<const int32_t> part :
       {std::span<const int32_t>(more), std::span<const int32_t>(more).first(1)}) {
    const std::span<const float> row = session.append(part);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

EngineOptions random_model_options(const OffloadOptions& flags, DType cache) {
  EngineOptions options;
  options.context.n_ctx = 128;
  options.context.n_ubatch = 16;
  options.context.k_dtype = options.context.v_dtype = cache;
  options.offload = flags;
  return options;
}

TEST_F(GpuSplit, RandomModelsOfEveryDtypeAgreeWithTheCpu) {
  const test::TempDir directory;
  for (DType dtype : some_of(products_dtypes(), 8)) {
    for (int64_t n_expert : {0, 3}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (n_expert > 0 ? " experts" : ""));
      test::TinyShape shape;
      shape.n_embd = 256;
      shape.n_ff = 512;
      shape.n_layer = 3;
      shape.n_expert = n_expert;
      shape.n_expert_used = n_expert;  // all of them, so that rounding cannot change the choice
      shape.dtype = dtype;
      const std::string path = directory.path("random.gguf");
      test::tiny_llama(shape, 11).write(path);
      const auto model = Model::load(path);
      Session alone(*model, {host_.get()}, random_model_options({}, DType::F16));
      const std::vector<float> expected = logits_of(alone);
      for_every_split(*model, [&](const OffloadOptions& flags) {
        Session session(*model, both(), random_model_options(flags, DType::F16));
        // Rounding differences add up over the layers; a real error is much larger.
        EXPECT_LT(relative_error(logits_of(session), expected), dtype == DType::F32 ? 2 * kF32 : 5e-2);
      });
    }
  }
}

// A dtype that has kernels nowhere: the same greedy text by way of floats on either device and on both.
TEST_F(GpuSplit, ADtypeWithoutKernelsGivesTheSameTextEverywhere) {
  const test::TempDir directory;
  for (DType dtype : products_dtypes()) {
    if (device_->dtype_support(dtype).multiply != KernelPath::generic) continue;
    if (host_->dtype_support(dtype).multiply != KernelPath::generic)
      continue;  // its activations are rounded to 8 bits
    for (int64_t n_expert : {0, 4}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (n_expert > 0 ? " experts" : ""));
      test::TinyShape shape;
      shape.n_embd = 256;
      shape.n_ff = 512;
      shape.n_layer = 2;
      shape.n_expert = n_expert;
      shape.n_expert_used = n_expert / 2;
      shape.dtype = dtype;
      const std::string path = directory.path("random.gguf");
      test::tiny_llama(shape, 11).write(path);
      const auto model = Model::load(path);
      const auto greedy = [](Session& session) {
        std::vector<int32_t> ids{3, 10, 17, 24, 31, 38, 45, 52, 59, 66, 73, 80};
        std::span<const float> row = session.append(ids);
        for (int i = 0; i < 8; ++i) {
          ids.push_back(argmax(row));
          row = session.append(std::span(&ids.back(), 1));
        }
        return ids;
      };
      Session alone(*model, {host_.get()}, random_model_options({}, DType::F32));
      const std::vector<int32_t> expected = greedy(alone);
      for_every_split(*model, [&](const OffloadOptions& flags) {
        Session session(*model, both(), random_model_options(flags, DType::F32));
        EXPECT_EQ(greedy(session), expected);
      });
    }
  }
}

TEST_F(GpuSplit, EveryCacheDtypeAgreesWithTheCpu) {
  const test::TempDir directory;
  const std::string path = directory.path("random.gguf");
  test::tiny_llama({.n_embd = 256, .n_layer = 3}, 12).write(path);
  const auto model = Model::load(path);
  for (DType cache : kCacheDTypes) {
    SCOPED_TRACE(dtype_name(cache));
    Session alone(*model, {host_.get()}, random_model_options({}, cache));
    const std::vector<float> expected = logits_of(alone);
    for_every_split(*model, [&](const OffloadOptions& flags) {
      Session session(*model, both(), random_model_options(flags, cache));
      EXPECT_LT(relative_error(logits_of(session), expected), cache == DType::F32 ? 2 * kF32 : 2e-2);
    });
  }
}

// Weights streamed in all steps, or only in steps of several tokens; with the cache on the GPU, on the host,
// and on the host but prefetched. Recorded steps find other weights at the same addresses.
TEST_F(GpuSplit, StreamedWeightsAndCachesAgreeWithTheCpu) {
  const test::TempDir directory;
  for (DType dtype : some_of<DType>({DType::F32, DType::Q8_0, DType::Q4_K}, 2)) {
    for (int64_t n_expert : some_of<int64_t>({0, 3}, 2)) {
      test::TinyShape shape;
      shape.n_embd = 256;
      shape.n_ff = 512;
      shape.n_layer = 4;
      shape.n_expert = shape.n_expert_used = n_expert;
      shape.dtype = dtype;
      const std::string path = directory.path("random.gguf");
      test::tiny_llama(shape, 11).write(path);
      const auto model = Model::load(path);
      Session alone(*model, {host_.get()}, random_model_options({}, DType::F16));
      const std::vector<float> expected = logits_of(alone);
      for (Streaming streaming : {Streaming::prefill, Streaming::always}) {
        for (int64_t n_gpu_layers : {0, 2}) {
          for (const CacheChoice& cache : {CacheChoice(CacheBesideLayers{}), CacheChoice(CacheOnHost{}),
                                           CacheChoice(CacheBesideLayers{true}), CacheChoice(CacheOnHost{true}), CacheChoice(PrefetchedCache{})}) {
            const bool is_quick = dtype == DType::F32
                                      ? n_gpu_layers == 2 && is_brought_for_prompts(cache)
                                      : n_gpu_layers == 0 && cache == CacheChoice(CacheBesideLayers{}) &&
                                            streaming == Streaming::always;
            if (on_short_list() && !is_quick) continue;
            SCOPED_TRACE(std::string(dtype_name(dtype)) + (n_expert > 0 ? " experts " : " ") +
                         std::string(streaming_name(streaming)) + " -ngl " + std::to_string(n_gpu_layers) +
                         " cache " + std::to_string(cache.index()));
            EngineOptions options = random_model_options({}, DType::F16);
            options.placement = place(model->architecture(), model->weights(), both(), {},
                                      {n_gpu_layers, cache, 0, streaming});
            Session session(*model, both(), options);
            EXPECT_LT(relative_error(logits_of(session), expected), dtype == DType::F32 ? 2 * kF32 : 5e-2);
            EXPECT_GT(session.executor().streamed_bytes(), 0u);
          }
        }
      }
    }
  }
}

// Experts that the GPU keeps beside the host.
TEST_F(GpuSplit, KeptExpertsAgreeWithTheCpu) {
  const test::TempDir directory;
  for (DType dtype : some_of<DType>({DType::F32, DType::Q8_0, DType::Q4_K}, 2)) {
    test::TinyShape shape;
    shape.n_embd = 256;
    shape.n_ff = 512;
    shape.n_layer = 2;
    shape.n_expert = 6;
    shape.n_expert_used = 2;
    shape.dtype = dtype;
    const std::string path = directory.path("random.gguf");
    test::tiny_llama(shape, 11).write(path);
    const auto model = Model::load(path);
    Session alone(*model, {host_.get()}, random_model_options({}, DType::F16));
    const std::vector<float> expected = logits_of(alone);
    for (const int64_t n_slots : {1, 4}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " slots " + std::to_string(n_slots));
      EngineOptions options = random_model_options({}, DType::F16);
      options.placement =
          place(model->architecture(), model->weights(), both(), {},
                {.n_gpu_layers = 3, .n_cpu_moe = 2, .n_cached_experts = n_slots, .fetched_experts = 0.5});
      ASSERT_TRUE(options.placement.caches_experts(StepKind::decode));
      Session session(*model, both(), options);
      EXPECT_LT(relative_error(logits_of(session), expected), dtype == DType::F32 ? 2 * kF32 : 5e-2);
    }
  }
}

// Split caches: the GPU has the newest tokens, and each device computes attention over its part.
TEST_F(GpuSplit, SplitCachesAgreeWithTheCpu) {
  const test::TempDir directory;
  const std::string path = directory.path("random.gguf");
  test::tiny_llama({.n_embd = 256, .n_layer = 3}, 12).write(path);
  const auto model = Model::load(path);
  for (DType cache : some_of<DType>({DType::F32, DType::F16, DType::Q8_0}, 2)) {
    Session alone(*model, {host_.get()}, random_model_options({}, cache));
    const std::vector<float> expected = long_logits_of(alone);
    for (int64_t n_hot : {1, 33}) {
      for (int64_t n_gpu_layers : some_of<int64_t>({4, 2}, 2)) {
        SCOPED_TRACE(std::string(dtype_name(cache)) + " --kv-split " + std::to_string(n_hot) + " -ngl " +
                     std::to_string(n_gpu_layers));
        OffloadOptions flags;
        flags.n_gpu_layers = n_gpu_layers;
        flags.kv_split = n_hot;
        Session session(*model, both(), random_model_options(flags, cache));
        EXPECT_LT(relative_error(long_logits_of(session), expected), cache == DType::F32 ? 2 * kF32 : 2e-2);
        EXPECT_TRUE(session.placement().placement.splits_caches());
      }
    }
  }
}

TEST_F(GpuSplit, AnImpossibleContextIsACleanError) {
  const test::TempDir directory;
  const std::string path = directory.path("random.gguf");
  test::tiny_llama({.n_embd = 256, .n_layer = 2}, 13).write(path);
  const auto model = Model::load(path);
  const size_t free_before = device_->memory_info().free_bytes;
  OffloadOptions flags;
  flags.n_gpu_layers = 3;
  EngineOptions options = random_model_options(flags, DType::F32);
  // Keys and values of one layer take 2 * 128 * 4 bytes per token: more memory than the GPU has.
  options.context.n_ctx = static_cast<int64_t>(device_->memory_info().total_bytes / 1024);
  try {
    Session session(*model, both(), options);
    FAIL() << "a cache larger than the memory was given";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory) << e.what();
  }
  // All memory is free again, except the driver's own.
  EXPECT_GT(device_->memory_info().free_bytes + (size_t{256} << 20), free_before);
  options.context.n_ctx = 128;
  Session session(*model, both(), options);
  EXPECT_EQ(logits_of(session).size(), 5u * 300u);
}

}  // namespace
}  // namespace tandem::gpu_test
