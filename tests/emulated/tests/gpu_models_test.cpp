// The CUDA device on other GPUs than the usual software one, without cuBLAS, with little memory; and what it asks of the
// driver: launches, recordings, copies.
#include "cpu/cpu_device.h"
#include "emulated/gpu.h"
#include "engine/session.h"
#include "gpu/attention_scene.h"
#include "support/gguf_bytes.h"
#include "support/tiny_model.h"

namespace tandem::gpu_test {
namespace {

class EmulatedGpu : public GpuTest {
 protected:
  void TearDown() override { use(usual_); }

  void use(const emulator::GpuModel& model) {
    device_.reset();
    emulator::become(model);
    std::string why;
    device_ = make_device_under_test(why);
    ASSERT_NE(device_, nullptr) << why;
  }
  emulator::GpuModel with(int compute_capability, int n_multiprocessors = 132) {
    emulator::GpuModel model;
    model.compute_capability = compute_capability;
    model.n_multiprocessors = n_multiprocessors;
    return model;
  }

  static ShapeClass tokens(int64_t n) {
    ShapeClass shape;
    shape.max_tokens = n;
    shape.max_outputs = n;
    return shape;
  }

  // What fn() makes the device ask for.
  template <class Fn>
  emulator::Counts counts_of(Fn&& fn) {
    const emulator::Counts before = emulator::counts();
    fn();
    return emulator::counts() - before;
  }

  // Products by cuBLAS in a product of n tokens.
  int64_t products_by_cublas(DType dtype, int64_t n) {
    OpCase c(random_, tokens(n));
    c.finish(c.builder.linear(c.activation(256), c.matrix(dtype, 40, 256)));
    return counts_of([&] { c.run(*device_, {n, 1}); }).cublas_products;
  }

  const emulator::GpuModel usual_ = emulator::gpu();
};

// Every weight, for every number of tokens: the GPU is as able as with it.
TEST_F(EmulatedGpu, WithoutCublasItMultipliesEverythingItself) {
  emulator::GpuModel model;
  model.has_cublas = false;
  use(model);
  const emulator::Counts before = emulator::counts();
  for (DType dtype :
       {DType::Q4_K, DType::Q8_0, DType::IQ3_S, DType::F16, DType::BF16, DType::F32, DType::TQ2_0}) {
    SCOPED_TRACE(dtype_name(dtype));
    const double tolerance = dtype == DType::F32 ? kF32 : kRounded;
    OpCase c(random_, tokens(300));
    const TensorId x = c.activation(256), r = c.activation(70);
    c.finish(c.builder.linear(x, c.matrix(dtype, 70, 256), c.vector(random_.normals(70)), r));
    for (const int64_t n : {9, 44, 200})
      c.expect_match(*device_, {n, 1}, tolerance, OpCase::Rounding::allowed);
    OpCase g(random_, tokens(300));
    g.finish(g.builder.glu(g.activation(256), {}, g.matrix(dtype, 70, 256), g.matrix(dtype, 70, 256)));
    for (const int64_t n : {21, 200}) g.expect_match(*device_, {n, 1}, tolerance, OpCase::Rounding::allowed);
    OpCase h(random_, tokens(40));
    h.finish(h.builder.head_linear(h.activation(3 * 256), h.matrix(dtype, 20, 256, 3)));
    h.expect_match(*device_, {40, 1}, tolerance, OpCase::Rounding::allowed);
  }
  OpCase mixed(random_, tokens(200));
  mixed.finish(mixed.builder.glu(mixed.activation(256), {}, mixed.matrix(DType::F16, 70, 256),
                                 mixed.matrix(DType::Q4_K, 70, 256)));
  mixed.expect_match(*device_, {200, 1}, kRounded, OpCase::Rounding::allowed);
  EXPECT_EQ((emulator::counts() - before).cublas_products, 0);
}

// Server GPUs have 16-bit units that are worth converting weights for; the others have not, newer ones included.
TEST_F(EmulatedGpu, LongPromptsGoToTheFasterUnits) {
  for (const int capability : {90, 100}) {
    use(with(capability, 6));
    EXPECT_EQ(products_by_cublas(DType::Q4_K, 192), 0) << capability;
    EXPECT_GT(products_by_cublas(DType::Q4_K, 193), 0) << capability;
  }
  use(with(80, 6));
  EXPECT_EQ(products_by_cublas(DType::Q4_K, 512), 0);
  EXPECT_GT(products_by_cublas(DType::Q4_K, 513), 0);
  for (const int capability : {86, 89, 120, 121}) {
    use(with(capability, 6));
    EXPECT_EQ(products_by_cublas(DType::Q4_K, 600), 0) << capability;
    EXPECT_GT(products_by_cublas(DType::F16, 9), 0) << capability;
  }
}

// The converted rows of a matrix, in several panels; 128 MiB of memory make them 512 KiB.
TEST_F(EmulatedGpu, MatricesOfSeveralPanels) {
  emulator::GpuModel model;
  model.memory_bytes = size_t{128} << 20;
  use(model);
  for (DType dtype : quantizable_dtypes()) {
    SCOPED_TRACE(dtype_name(dtype));
    OpCase c(random_, tokens(200));
    constexpr int64_t k = 2560, m = 221;
    const TensorId x = c.activation(k), r = c.activation(m);
    c.finish(c.builder.linear(x, c.matrix(dtype, m, k), c.vector(random_.normals(m)), r));
    const emulator::Counts asked = counts_of([&] {
      c.expect_match(*device_, {193, 1}, dtype == DType::F32 ? kF32 : kRounded, OpCase::Rounding::allowed);
    });
    const bool in_place = dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16;
    if (in_place) {
      EXPECT_EQ(asked.cublas_products, 1);
    } else {
      EXPECT_GE(asked.cublas_products, 3);
    }
  }
}

TEST_F(EmulatedGpu, AGpuThatTheBuildHasNoCodeForIsNamed) {
  device_.reset();
  emulator::become(with(75));
  std::string why;
  EXPECT_EQ(make_device_under_test(why), nullptr);
  EXPECT_EQ(why, "this build has no code for emulated GPU (sm_75)");
}

// ---- What a step asks for ----

TEST_F(EmulatedGpu, StepsOfFewTokensAreOneLaunch) {
  OpCase c(random_, tokens(9));
  const TensorId x = c.activation(256);
  c.finish(c.builder.linear(c.builder.norm(x, {NormKind::rms, 1e-5f, 256}, c.vector(random_.normals(256))),
                            c.matrix(DType::Q4_K, 256, 256), nullptr, x));
  for (int64_t n = 1; n <= 9; ++n) {
    SCOPED_TRACE(n);
    std::vector<emulator::Counts> at;
    c.run(*device_, {n, n}, 4, [&] { at.push_back(emulator::counts()); });
    const emulator::Counts third = at[3] - at[2];
    EXPECT_EQ(third.graph_launches, n <= 8 ? 1 : 0);
    EXPECT_EQ(third.graph_kernels > 0, n <= 8);
  }
}

TEST_F(EmulatedGpu, SmallCopiesTakeNoCopyEngine) {
  const DevicePtr memory = device_->alloc(1 << 20);
  const std::vector<std::byte> bytes(200000);
  device_->wait(device_->record());
  const emulator::Counts small = counts_of([&] {
    for (size_t i = 0; i < 6; ++i) device_->copy_in(memory + i * 5000, bytes.data(), 5000 - 3 * i);
    device_->wait(device_->record());
  });
  EXPECT_EQ(small.copies_from_host, 0);
  EXPECT_EQ(small.launches, 1);
  const emulator::Counts large = counts_of([&] {
    device_->copy_in(memory, bytes.data(), bytes.size());
    device_->wait(device_->record());
  });
  EXPECT_EQ(large.copies_from_host, 1);
  EXPECT_EQ(large.launches, 0);
  device_->free(memory);
}

// The kernels of a token of a model like Llama without chains (FLOORS.md), which a graph launches; all that comes to the device for it comes
// in one kernel, and the largest logits go back in one copy.
TEST_F(EmulatedGpu, LaunchesOfAToken) {
  setenv("TANDEM_CUDA_CHAINS", "0", 1);
  use(usual_);
  unsetenv("TANDEM_CUDA_CHAINS");
  const test::TempDir directory;
  const auto host = cpu::make_cpu_device({2, 2, std::min(cpu::best_isa(), cpu::Isa::avx512_vnni)});
  std::map<int64_t, emulator::Counts> by_layers;
  for (const int64_t n_layer : {1, 3}) {
    test::TinyShape shape;
    shape.n_embd = 512;
    shape.n_head = 8;
    shape.n_ff = 512;
    shape.n_layer = n_layer;
    shape.dtype = DType::Q4_K;
    const std::string path = directory.path("llama.gguf");
    test::tiny_llama(shape, 11).write(path);
    const auto model = Model::load(path);
    EngineOptions options;
    options.context.n_ctx = 128;
    options.context.n_ubatch = 16;
    options.offload.n_gpu_layers = n_layer + 1;
    Session session(*model, {host.get(), device_.get()}, options);
    const std::vector<int32_t> prompt{3, 4, 5, 6};
    session.append(prompt);
    const auto decode = [&](LogitsWanted wanted) { session.append(std::span(prompt).first(1), wanted); };
    for (int i = 0; i < 3; ++i) decode(LogitsWanted::all);
    by_layers[n_layer] = counts_of([&] { decode(LogitsWanted::largest); });
    const emulator::Counts with_all = counts_of([&] { decode(LogitsWanted::all); });
    EXPECT_EQ(with_all.bytes_to_host, shape.n_vocab * 4);
    EXPECT_EQ(with_all.copies_to_host, 1);
  }
  const emulator::Counts& one = by_layers[1];
  const int64_t of_layer = (by_layers[3].graph_kernels - one.graph_kernels) / 2;
  EXPECT_EQ(of_layer, 8);
  EXPECT_EQ(one.graph_kernels - of_layer, 4);  // the last layer's gathers, the last norm, the head, top_k
  EXPECT_LE(one.graph_kernels + 31 * of_layer, 260) << "of 32 layers";
  EXPECT_EQ(one.graph_launches, 1);
  EXPECT_EQ(one.launches, 1);  // what the host knows of the step, and the row that it has embedded
  EXPECT_EQ(one.copies_from_host, 0);
  EXPECT_EQ(one.copies_to_host, 1);
  EXPECT_EQ(one.bytes_to_host, 2 * 64 * 4);
}

// The same with chains (chain.h).
class EmulatedChains : public EmulatedGpu {
 protected:
  struct Answer {
    std::vector<float> logits;  // of four tokens behind a prompt
    emulator::Counts counts;    // of one more
  };
  Answer answer(const test::TinyShape& shape, bool chains, size_t n_prompt = 4, DType cache = DType::F16) {
    if (!chains) setenv("TANDEM_CUDA_CHAINS", "0", 1);
    use(usual_);
    unsetenv("TANDEM_CUDA_CHAINS");
    const std::string path = directory_.path("llama.gguf");
    test::tiny_llama(shape, 11).write(path);
    const auto model = Model::load(path);
    EngineOptions options;
    options.context.n_ctx = 640;
    options.context.n_ubatch = 64;
    options.context.k_dtype = options.context.v_dtype = cache;
    options.offload.n_gpu_layers = shape.n_layer + 1;
    Session session(*model, {host_.get(), device_.get()}, options);
    std::vector<int32_t> prompt(n_prompt);
    for (size_t i = 0; i < n_prompt; ++i) prompt[i] = 3 + static_cast<int32_t>(i * 7 % 290);
    session.append(prompt);
    Answer answer;
    for (size_t i = 0; i < 4; ++i) {
      const std::span<const float> row = session.append(std::span(prompt).subspan(i % n_prompt, 1), LogitsWanted::all).all();
      answer.logits.insert(answer.logits.end(), row.begin(), row.end());
    }
    answer.counts = counts_of([&] { session.append(std::span(prompt).first(1), LogitsWanted::largest); });
    return answer;
  }
  static test::TinyShape shape_of(DType dtype, int64_t n_layer) {
    test::TinyShape shape;
    shape.n_embd = 512;
    shape.n_head = 8;
    shape.n_ff = 512;
    shape.n_layer = n_layer;
    shape.dtype = dtype;
    return shape;
  }

  const test::TempDir directory_;
  const std::unique_ptr<Device> host_ = cpu::make_cpu_device({2, 2, std::min(cpu::best_isa(), cpu::Isa::avx512_vnni)});
};

// Of a layer, attention, and a chain from its output to the next layer's cache; or the rotation and the blocks of the cache, behind a
// chain.
TEST_F(EmulatedChains, LaunchesOfAToken) {
  for (const DType dtype : {DType::Q4_K, DType::F16}) {
    for (const DType cache : {DType::F16, DType::Q8_0}) {
      std::map<int64_t, int64_t> n_kernels;
      for (const int64_t n_layer : {1, 3}) {
        const Answer with = answer(shape_of(dtype, n_layer), true, 4, cache), without = answer(shape_of(dtype, n_layer), false, 4, cache);
        EXPECT_LT(relative_error(with.logits, without.logits), 1e-2) << dtype_name(dtype) << ' ' << n_layer;
        EXPECT_EQ(with.counts.graph_launches, 1);
        n_kernels[n_layer] = with.counts.graph_kernels;
      }
      const int64_t of_layer = (n_kernels[3] - n_kernels[1]) / 2;
      EXPECT_EQ(of_layer, cache == DType::F16 ? 2 : 3);
      EXPECT_EQ(n_kernels[1] - of_layer, 3);  // the last layer's gathers, the chain behind them, top_k
    }
  }
}

// Norms of the heads, rotation and the cache are one launch; with a value that other nodes read, norms have their own.
TEST_F(EmulatedGpu, NormsOfHeadsGoWithTheirRotation) {
  use(usual_);
  enum class Norms { none, both, keys_are_values };
  std::map<Norms, int64_t> n_launches;
  for (const Norms norms : {Norms::none, Norms::both, Norms::keys_are_values}) {
    AttentionCase a;
    OpCase c(random_, a.shape());
    const AttentionScene scene(random_, a);
    scene.give(c);
    c.set_input(Input::slots, {scene.slot(0, a.lengths[0] - 1)});
    GraphBuilder& b = c.builder;
    b.set_layer(0);
    const std::vector<float> ones(64, 1.0f);
    const TensorId q = c.activation(4 * 64), k = c.activation(2 * 64), v = norms == Norms::keys_are_values ? k : c.activation(2 * 64);
    const auto norm = [&](TensorId x) { return norms == Norms::none ? x : b.norm(x, {NormKind::rms, 1e-5f, 64}, c.vector(ones)); };
    const TensorId turned = b.rope(norm(q), {RopeStyle::half, 4, 64, 64});
    b.kv_write(b.rope(norm(k), {RopeStyle::half, 2, 64, 64}), v);
    c.finish(turned);
    n_launches[norms] = counts_of([&] { c.run(*device_, {1, 1}); }).launches;
    c.expect_match(*device_, {1, 1}, 1e-6);
  }
  EXPECT_EQ(n_launches[Norms::both], n_launches[Norms::none]);
  EXPECT_GT(n_launches[Norms::keys_are_values], n_launches[Norms::none]);
}

// In long prompts a norm and a gated unit give their products 16-bit floats, with a launch less for each.
TEST_F(EmulatedGpu, LongPromptsHandOn16BitFloats) {
  use(with(90, 4));
  for (const DType dtype : {DType::Q4_K, DType::F16}) {
    std::map<bool, int64_t> n_launches;
    for (const bool apart : {false, true}) {
      OpCase c(random_, tokens(300));
      GraphBuilder& b = c.builder;
      const auto passed = [&](TensorId x) { return apart ? b.scale(x, 1.0f) : x; };  // a launch between
      const TensorId normed = b.norm(c.activation(256), {NormKind::rms, 1e-5f, 256}, c.vector(std::vector<float>(256, 1.0f)));
      const TensorId hidden = b.glu(passed(normed), Activation::silu, c.matrix(dtype, 256, 256), c.matrix(dtype, 256, 256));
      c.finish(b.linear(passed(hidden), c.matrix(dtype, 64, 256)));
      n_launches[apart] = counts_of([&] { c.run(*device_, {300, 1}); }).launches;
      c.expect_match(*device_, {300, 1}, 1e-2, OpCase::Rounding::allowed);
    }
    EXPECT_EQ(n_launches[true] - n_launches[false], 2 + 2) << dtype_name(dtype);
  }
}

// As many blocks as a large GPU has multiprocessors; fewer warps where there is less shared memory, and no chain where the input of
// a product leaves too little of it.
TEST_F(EmulatedGpu, ChainsOnOtherGpus) {
  for (const int capability : {80, 89, 90, 120}) {
    for (const auto& [dtype, n_ff] : {std::pair<DType, int64_t>{DType::Q4_K, 700}, {DType::F16, 700}, {DType::Q4_K, 28672}}) {
      OpCase c(random_, tokens(1));
      const TensorId x = c.activation(512);
      const TensorId h = c.builder.linear(x, c.matrix(dtype, 512, 512), nullptr, x);
      const TensorId y = c.builder.norm(h, {NormKind::rms, 1e-5f, 512}, c.vector(std::vector<float>(512, 1.0f)));
      const TensorId wide = c.builder.linear(y, c.matrix(dtype, n_ff, 512));
      c.finish(n_ff % 256 == 0 ? c.builder.linear(wide, c.matrix(dtype, 64, n_ff)) : wide);
      std::map<std::string, int64_t> n_launches;
      for (const char* chains : {"0", "pairs", "tiles"}) {
        setenv("TANDEM_CUDA_CHAINS", chains, 1);
        use(with(capability));
        unsetenv("TANDEM_CUDA_CHAINS");
        n_launches[chains] = counts_of([&] { c.run(*device_, {1, 1}); }).launches;
        c.expect_match(*device_, {1, 1}, 1e-2, OpCase::Rounding::allowed);
      }
      // In the chain are two products and the norm, of quantized weights the encoding of the first input too; and the product of the wide
      // input, 36 KB, with its encoding, where there is memory for that beside the rings.
      const bool has_wide = n_ff > 10000 && capability == 90;
      for (const char* chains : {"pairs", "tiles"}) {
        EXPECT_EQ(n_launches["0"] - n_launches[chains], (dtype == DType::F16 ? 2 : 3) + (has_wide ? 2 : 0))
            << n_launches[chains] << " and " << n_launches["0"] << " launches, sm_" << capability << ' ' << dtype_name(dtype) << ' ' << chains;
      }
    }
  }
}

// A cache of groups as a text grows past those that are closed and is cut back: on the GPU, fetched for each step, in two parts.
TEST_F(EmulatedGpu, GroupedCachesGiveTheLogitsOfTheCpu) {
  const test::TempDir directory;
  const auto host = cpu::make_cpu_device({2, 2, std::min(cpu::best_isa(), cpu::Isa::avx512_vnni)});
  test::TinyShape shape;
  shape.n_embd = 128;  // heads of 32
  const std::string path = directory.path("llama.gguf");
  test::tiny_llama(shape, 11).write(path);
  const auto model = Model::load(path);
  const auto logits = [&](const std::vector<Device*>& devices, DType type, const OffloadOptions& flags) {
    EngineOptions options;
    options.context.n_ctx = 640;
    options.context.n_ubatch = 32;
    options.context.k_dtype = options.context.v_dtype = type;
    options.offload = flags;
    Session session(*model, devices, options);
    std::vector<float> all;
    const auto add = [&](int n, int from) {
      std::vector<int32_t> tokens;
      for (int i = from; i < from + n; ++i) tokens.push_back(3 + i * 7 % 290);
      const std::span<const float> row = session.append(tokens);
      all.insert(all.end(), row.begin(), row.end());
    };
    add(230, 0);
    for (int i = 0; i < 35; ++i) add(1, i * i);
    for (const int64_t n : {250, 133, 40}) {
      session.truncate(n);
      add(170, 5);
      add(1, 9);
    }
    return all;
  };
  for (const DType type : {DType::KIVI4, DType::KIVI2}) {
    const std::vector<float> wanted = logits({host.get()}, type, {}),
                             exact = logits({host.get()}, DType::F32, {});
    const double lost = relative_error(wanted, exact);
    for (const int where : {0, 1, 2}) {
      OffloadOptions flags;
      flags.n_gpu_layers = 99;
      flags.kv_prefetched = where == 1;
      if (where == 2) flags.kv_split = 1;
      const double apart = relative_error(logits({host.get(), device_.get()}, type, flags), wanted);
      EXPECT_LT(apart, lost / 4) << dtype_name(type) << " " << where;
      EXPECT_LT(apart, 0.02) << dtype_name(type) << " " << where;
    }
  }
}

// Loading one takes memory and may wait for the device, while the other thread records a graph.
TEST_F(EmulatedGpu, TheFetchersKernelsAreLoadedBeforeTheFirstFetch) {
  const auto fetch = [&](DType dtype) {
    Weight weight{"w", dtype, 1, 4, 256};
    const std::vector<std::byte> bytes(weight.n_bytes());
    weight.data = bytes.data();
    const DevicePtr to = device_->alloc(device_->weight_bytes(weight));
    device_->join(device_->fetch(to, weight, 0));
    device_->wait(device_->record());
    device_->free(to);
  };
  fetch(DType::F32);
  const emulator::Counts later = counts_of([&] {
    for (DType dtype : quantizable_dtypes()) fetch(dtype);
  });
  EXPECT_EQ(later.kernels_loaded, 0);
}

}  // namespace
}  // namespace tandem::gpu_test
