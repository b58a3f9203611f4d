// SelfExtend (graph/self_extend.h) against attention by the paper's distances, in float64 and from scratch, of random models; the same
// text in any steps, placements, caches and files; and what it is refused with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/setting.h"
#include "engine/generate.h"
#include "engine/session_file.h"
#include "kv/block_store.h"
#include "support/batch_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

// A Llama's logits after every token, [n, n_vocab].
class Reference {
 public:
  explicit Reference(const test::TinyModel& model, const test::TinyShape& shape) : s_(shape) {
    for (const auto& [name, t] : model.tensors) {
      std::vector<float> x(t.data.size() / sizeof(float));
      std::memcpy(x.data(), t.data.data(), t.data.size());
      tensors_[name].assign(x.begin(), x.end());
    }
  }

  std::vector<double> logits(std::span<const int32_t> ids, const SelfExtend& extend) const {
    const size_t n = ids.size(), n_embd = static_cast<size_t>(s_.n_embd);
    std::vector<std::vector<double>> x(n);
    for (size_t t = 0; t < n; ++t) {
      const auto row = tensors_.at("token_embd.weight").begin() + ids[t] * s_.n_embd;
      x[t].assign(row, row + s_.n_embd);
    }
    for (int64_t layer = 0; layer < s_.n_layer; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      attend(x, prefix, extend);
      for (std::vector<double>& row : x) feed_forward(row, prefix);
    }
    std::vector<double> all;
    for (const std::vector<double>& row : x) {
      const std::vector<double> y = product("output.weight", norm(row, "output_norm.weight"));
      all.insert(all.end(), y.begin(), y.end());
    }
    EXPECT_EQ(x[0].size(), n_embd);
    return all;
  }

 private:
  std::vector<double> product(const std::string& name, const std::vector<double>& x) const {
    const std::vector<double>& w = tensors_.at(name);
    std::vector<double> y(w.size() / x.size());
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) y[i] += w[i * x.size() + j] * x[j];
    }
    return y;
  }
  std::vector<double> norm(std::vector<double> x, const std::string& name) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-5);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * tensors_.at(name)[i];
    return x;
  }
  void feed_forward(std::vector<double>& x, const std::string& prefix) const {
    const std::vector<double> in = norm(x, prefix + "ffn_norm.weight");
    std::vector<double> h = product(prefix + "ffn_gate.weight", in);
    const std::vector<double> up = product(prefix + "ffn_up.weight", in);
    for (size_t i = 0; i < h.size(); ++i) h[i] *= up[i] / (1 + std::exp(-h[i]));
    const std::vector<double> y = product(prefix + "ffn_down.weight", h);
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  // Equation 4 of the paper: the distance between a query and a key before it.
  static int64_t distance(int64_t q, int64_t k, const SelfExtend& o) {
    const int64_t w = o.neighbours, g = o.factor;
    return q - k < w || g == 1 ? q - k : q / g - k / g + w - w / g;
  }
  // The score of a key as it is, and a query turned by the distance.
  double score(const double* q, const double* k, int64_t turns) const {
    const int64_t head_dim = s_.n_embd / s_.n_head;
    double sum = 0;
    for (int64_t i = 0; i < head_dim; i += 2) {
      const double angle =
          static_cast<double>(turns) * std::pow(1e4, -static_cast<double>(i) / static_cast<double>(head_dim));
      const double c = std::cos(angle), s = std::sin(angle);
      sum += (q[i] * c - q[i + 1] * s) * k[i] + (q[i] * s + q[i + 1] * c) * k[i + 1];
    }
    return sum / std::sqrt(static_cast<double>(head_dim));
  }
  void attend(std::vector<std::vector<double>>& x, const std::string& prefix,
              const SelfExtend& extend) const {
    const size_t n = x.size(), head_dim = static_cast<size_t>(s_.n_embd / s_.n_head),
                 group = static_cast<size_t>(s_.n_head / s_.n_head_kv);
    std::vector<std::vector<double>> q, k, v;
    for (const std::vector<double>& row : x) {
      const std::vector<double> in = norm(row, prefix + "attn_norm.weight");
      q.push_back(product(prefix + "attn_q.weight", in));
      k.push_back(product(prefix + "attn_k.weight", in));
      v.push_back(product(prefix + "attn_v.weight", in));
    }
    for (size_t t = 0; t < n; ++t) {
      std::vector<double> y(x[t].size());
      for (size_t h = 0; h < static_cast<size_t>(s_.n_head); ++h) {
        const size_t of_kv = h / group * head_dim;
        std::vector<double> weights;
        double most = -INFINITY, total = 0;
        for (size_t p = 0; p <= t; ++p) {
          const auto turns = distance(static_cast<int64_t>(t), static_cast<int64_t>(p), extend);
          weights.push_back(score(q[t].data() + h * head_dim, k[p].data() + of_kv, turns));
          most = std::max(most, weights.back());
        }
        for (double& w : weights) total += w = std::exp(w - most);
        for (size_t p = 0; p <= t; ++p) {
          for (size_t d = 0; d < head_dim; ++d) y[h * head_dim + d] += weights[p] / total * v[p][of_kv + d];
        }
      }
      const std::vector<double> out = product(prefix + "attn_output.weight", y);
      for (size_t i = 0; i < out.size(); ++i) x[t][i] += out[i];
    }
  }

  test::TinyShape s_;
  std::map<std::string, std::vector<double>> tensors_;
};

class SelfExtends : public test::BatchRig {
 protected:
  std::unique_ptr<Model> load(const SelfExtend& extend, const std::string& name = "tiny.gguf") const {
    ModelOptions o;
    o.path = directory_.path(name);
    o.rope.self_extend = extend;
    return Model::load(o);
  }
  void write(uint64_t seed, const test::TinyShape& shape = {.n_embd = 128}) {
    test::tiny_llama(shape, seed).write(directory_.path("tiny.gguf"));
  }
  static EngineOptions options(int64_t n_ubatch, DType cache = DType::F32, int64_t n_ctx = 512) {
    EngineOptions o;
    o.context.n_ctx = n_ctx;
    o.context.n_ubatch = n_ubatch;
    o.context.k_dtype = o.context.v_dtype = cache;
    o.oom_ladder = false;
    return o;
  }
  static std::vector<int32_t> text(size_t n, uint64_t seed = 3) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(3 + random() % 290);
    return ids;
  }
  static std::vector<float> copy(std::span<const float> row) { return {row.begin(), row.end()}; }
  // After every token.
  static std::vector<float> all_logits(Session& session, std::span<const int32_t> ids) {
    std::vector<float> all;
    session.evaluate(ids, [&](int64_t, int64_t, std::span<const float> rows) {
      all.insert(all.end(), rows.begin(), rows.end());
    });
    return all;
  }
  static double difference(std::span<const float> a, std::span<const double> b) {
    EXPECT_EQ(a.size(), b.size());
    double most = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  }
  static double difference(std::span<const float> a, std::span<const float> b) {
    return difference(a, std::vector<double>(b.begin(), b.end()));
  }
  // After a prompt and each of some tokens behind it.
  std::vector<float> some_logits(Session& session, size_t n_prompt = 150) const {
    const std::vector<int32_t> ids = text(n_prompt + 5);
    std::vector<float> all = copy(session.append(std::span(ids).first(n_prompt)));
    for (size_t i = n_prompt; i < ids.size(); ++i) {
      const std::vector<float> row = copy(session.append(std::span(ids).subspan(i, 1)));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  template <class Fn>
  static std::string refusal(Fn&& fn) {
    try {
      fn();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return write_settings(e.message(), library_setting_text);
    }
    return "nothing is refused";
  }
};

TEST_F(SelfExtends, AttentionByThePapersDistances) {
  const uint64_t seed = std::random_device{}() % 1000000;
  SCOPED_TRACE("seed " + std::to_string(seed));
  test::TinyShape shape;
  write(seed, shape);
  const Reference reference(test::tiny_llama(shape, seed), shape);
  const std::vector<int32_t> ids = text(150, seed);
  const std::vector<double> plain = reference.logits(ids, {});
  for (const SelfExtend& extend : {SelfExtend{4, 12}, {2, 2}, {3, 51}, {8, 64}, {16, 16}, {5, 35}}) {
    SCOPED_TRACE(std::to_string(extend.factor) + ", " + std::to_string(extend.neighbours));
    const std::vector<double> expected = reference.logits(ids, extend);
    const auto model = load(extend);
    double from_plain = 0;
    for (const cpu::Isa isa : cpu::supported_isas()) {
      const bool is_best = isa == cpu::best_isa();
      for (const int64_t n_ubatch :
           is_best ? std::vector<int64_t>{150, 64, 7, 1} : std::vector<int64_t>{150, 9}) {
        SCOPED_TRACE(std::string(cpu::isa_name(isa)) + " -ub " + std::to_string(n_ubatch));
        const auto device = cpu::make_cpu_device({1, 1, isa});
        EngineOptions o = options(n_ubatch);
        o.context.all_logits = true;
        Session session(*model, {device.get()}, o);
        const std::vector<float> got = all_logits(session, ids);
        EXPECT_LT(difference(got, expected), 1e-3);
        from_plain = difference(got, plain);
      }
    }
    EXPECT_GT(from_plain, 0.1) << "it must matter";
  }
}

// What is rounded in the cache is rounded once, so each type loses what it loses without SelfExtend.
TEST_F(SelfExtends, EveryTypeOfTheCacheLosesAsMuchAsWithout) {
  write(5);
  const auto model = load({4, 12}), plain = load({});
  const std::vector<int32_t> ids = text(150);
  const auto loss = [&](const Model& m, DType dtype, Toggle rotate) {
    std::vector<float> of[2];
    for (const bool exact : {false, true}) {
      EngineOptions o = options(32, exact ? DType::F32 : dtype);
      o.context.all_logits = true;
      if (!exact) o.context.kv_rotate = rotate;
      Session session(m, {host_.get()}, o);
      of[exact] = all_logits(session, ids);
    }
    double sum = 0;
    for (size_t i = 0; i < of[0].size(); ++i) sum += std::pow(of[0][i] - of[1][i], 2);
    return std::sqrt(sum / static_cast<double>(of[0].size()));
  };
  for (const DType dtype : {DType::F16, DType::BF16, DType::Q8_0, DType::Q5_1, DType::Q5_0, DType::Q4_1,
                            DType::Q4_0, DType::IQ4_NL, DType::KIVI4, DType::KIVI2}) {
    for (const Toggle rotate : {Toggle::off, Toggle::on}) {
      const double with = loss(*model, dtype, rotate), without = loss(*plain, dtype, rotate);
      EXPECT_GT(with, 0) << dtype_name(dtype);
      EXPECT_LT(with, 1.5 * without) << dtype_name(dtype) << (rotate == Toggle::on ? " rotated" : "");
    }
  }
}

TEST_F(SelfExtends, AFactorOfOneIsOff) {
  write(6);
  const auto off = load({}), one = load({1, 512});
  Session a(*off, {host_.get()}, options(32)), b(*one, {host_.get()}, options(32));
  EXPECT_EQ(some_logits(a), some_logits(b));
  EXPECT_EQ(a.kv_bytes(), b.kv_bytes());
  EXPECT_EQ(one->hparams().n_ctx_usable(), one->hparams().n_ctx_train);
}

// Up to as many tokens as are neighbours, nothing changes.
TEST_F(SelfExtends, ShortTextsAreAsWithout) {
  write(6);
  const auto off = load({}), on = load({4, 64});
  for (const int64_t n_ubatch : {1, 64}) {
    EngineOptions o = options(n_ubatch);
    o.context.all_logits = true;
    Session a(*off, {host_.get()}, o), b(*on, {host_.get()}, o);
    EXPECT_LT(difference(all_logits(a, text(64)), all_logits(b, text(64))), 1e-5);
    const auto behind = [&](Session& s) { return copy(s.append(text(30, 8))); };
    EXPECT_GT(difference(behind(a), behind(b)), 1e-3);
  }
}

TEST_F(SelfExtends, TheTextIsTheSameInAnySteps) {
  write(7);
  const auto model = load({4, 12});
  for (const DType dtype : {DType::F32, DType::F16, DType::Q8_0}) {
    std::vector<std::vector<int32_t>> texts;
    for (const int64_t n_ubatch : {512, 31, 8, 1}) {
      Session session(*model, {host_.get()}, options(n_ubatch, dtype));
      std::vector<int32_t> ids;
      std::span<const float> row = session.append(text(140));
      while (ids.size() < 100) {
        ids.push_back(static_cast<int32_t>(std::ranges::max_element(row) - row.begin()));
        row = session.append(std::span(ids).last(1));
      }
      texts.push_back(ids);
      EXPECT_EQ(texts.back(), texts.front()) << dtype_name(dtype) << " -ub " << n_ubatch;
    }
  }
}

TEST_F(SelfExtends, CutBackAndContinued) {
  write(8);
  const auto model = load({4, 12});
  for (const DType dtype : {DType::F32, DType::KIVI4}) {
    Session session(*model, {host_.get()}, options(32, dtype)),
        fresh(*model, {host_.get()}, options(32, dtype));
    const std::vector<int32_t> ids = text(200);
    session.append(ids);
    for (const size_t n : {130, 63, 12, 5}) {
      session.truncate(static_cast<int64_t>(n));
      fresh.truncate(0);
      fresh.append(std::span(ids).first(n));
      const std::vector<int32_t> more = text(40, n);
      EXPECT_LT(difference(copy(session.append(more)), copy(fresh.append(more))),
                dtype == DType::F32 ? 1e-4 : 0.5)
          << n;
    }
  }
}

TEST_F(SelfExtends, SavedAndLoaded) {
  write(9);
  const auto model = load({4, 12}), other = load({2, 12}), wider = load({4, 16}), off = load({});
  const std::string file = directory_.path("session.gguf");
  for (const DType dtype : {DType::F16, DType::Q8_0}) {
    Session session(*model, {host_.get()}, options(32, dtype)),
        again(*model, {host_.get()}, options(7, dtype));
    session.append(text(150));
    save_session(session, file);
    SessionFile(file, again).restore(again, 150);
    const std::vector<int32_t> more = text(1, 4);
    EXPECT_EQ(copy(again.append(more)), copy(session.append(more)));
    for (const Model* m : {other.get(), wider.get(), off.get()}) {
      Session wrong(*m, {host_.get()}, options(32, dtype));
      EXPECT_THAT(refusal([&] { SessionFile(file, wrong).restore(wrong, 150); }), HasSubstr("rope"));
    }
  }
}

TEST_F(SelfExtends, KeptBlocksAreForTheSameDistances) {
  write(9);
  const auto model = load({4, 12}), other = load({2, 12}), off = load({});
  BlockStore store(directory_.path("store"));
  const std::vector<int32_t> ids = text(150);
  Session first(*model, {host_.get()}, options(32));
  first.keep_in(store);
  const std::vector<float> expected = copy(first.append(ids));
  first.keep();
  store.flush();
  Session again(*model, {host_.get()}, options(32));
  again.keep_in(store);
  const auto n = static_cast<size_t>(again.load_kept(ids));
  ASSERT_EQ(n, 128u);
  EXPECT_LT(difference(copy(again.append(std::span(ids).subspan(n))), expected), 1e-4);
  for (const Model* m : {other.get(), off.get()}) {
    Session wrong(*m, {host_.get()}, options(32));
    wrong.keep_in(store);
    EXPECT_EQ(wrong.load_kept(ids), 0);
  }
}

TEST_F(SelfExtends, BatchesWithSharedBeginnings) {
  write(10);
  const auto model = load({4, 12});
  const std::vector<BatchRequest> list = requests(9, 40);
  Runtime runtime(*model, {host_.get()}, BatchRig::options(4));
  Batcher batcher(runtime);
  EXPECT_EQ(together(batcher, list), alone(*model, list));
}

TEST_F(SelfExtends, OnAnyDevicesTheSameBits) {
  write(11, {.n_embd = 128, .n_layer = 4});
  const auto model = load({4, 12});
  for (const DType dtype : {DType::F16, DType::Q4_0, DType::KIVI4}) {
    Session alone(*model, {host_.get()}, options(32, dtype));
    const std::vector<float> expected = some_logits(alone);
    for (const int64_t n_gpu_layers : {5, 4, 2}) {
      for (const int cache : {0, 1, 2}) {
        EngineOptions o = options(32, dtype);
        o.offload.n_gpu_layers = n_gpu_layers;
        o.offload.kv_on_host = cache == 1 ? Toggle::on : Toggle::automatic;
        o.offload.kv_prefetched = cache == 2;
        test::SimDevice sim({});
        Session session(*model, {host_.get(), &sim}, o);
        EXPECT_EQ(some_logits(session), expected) << dtype_name(dtype) << " " << n_gpu_layers << " " << cache;
      }
    }
  }
}

TEST_F(SelfExtends, WithTheCacheOnDisk) {
  write(11, {.n_embd = 128, .n_layer = 4});
  const auto model = load({4, 12});
  Session memory(*model, {host_.get()}, options(16, DType::F16, 256));
  const std::vector<float> expected = some_logits(memory, 220);
  EngineOptions o = options(16, DType::F16, 256);
  o.context.kv_memory = memory.kv_bytes() * 9 / 10;
  o.context.kv_spill = directory_.path("");
  Session spilled(*model, {host_.get()}, o);
  EXPECT_EQ(some_logits(spilled, 220), expected);
  EXPECT_GT(spilled.executor().disk_bytes(), 0u);
}

// The keys of groups are not where a turn of one angle would bring them, so a shift computes them again.
TEST_F(SelfExtends, AShiftComputesAgain) {
  write(12);
  const auto model = load({4, 12});
  Session session(*model, {host_.get()}, options(32));
  session.append(text(100));
  EXPECT_FALSE(session.shift(4, 32));
  EXPECT_EQ(session.n_past(), 100);
  Session small(*model, {host_.get()}, options(32, DType::F32, 128));
  SamplerParams greedy;
  greedy.temp = 0;
  Sampler sampler(greedy, sampler_model(small));
  GenerateOptions how;
  how.n_predict = 60;
  how.context_shift = true;
  how.n_keep = 3;
  const GenerateStats stats = generate(small, sampler, text(120), how, {});
  EXPECT_EQ(stats.n_generated, 60);
  EXPECT_GE(stats.n_shifts, 1);
  EXPECT_EQ(small.n_exact(), small.n_past());
}

TEST_F(SelfExtends, TheContextIsAsLongAsTheDistancesReach) {
  write(13);
  const auto model = load({4, 12});
  EXPECT_EQ(model->hparams().n_ctx_usable(), 4 * (128 - 12) + 12);
  EngineOptions o = options(32);
  o.context.n_ctx = 0;
  o.context.n_ctx_given = true;
  Session session(*model, {host_.get()}, o);
  EXPECT_EQ(session.n_ctx(), 4 * (128 - 12) + 12);
  // The largest distance there is the largest that the model has seen.
  const SelfExtend& e = model->hparams().self_extend;
  EXPECT_EQ(e.query_group(session.n_ctx() - 1) - e.key_group(0), 127);
}

TEST_F(SelfExtends, BadNumbersAreRefused) {
  write(13);
  const auto why = [&](const SelfExtend& o) { return refusal([&] { load(o); }); };
  EXPECT_EQ(why({0, 512}), "self_extend=0: needed 1 (off) or more");
  EXPECT_EQ(why({-3, 512}), "self_extend=-3: needed 1 (off) or more");
  EXPECT_EQ(why({4, 0}), "self_extend_width=0: needed at least 1");
  EXPECT_EQ(why({4, -4}), "self_extend_width=-4: needed at least 1");
  EXPECT_EQ(why({3, 64}), "self_extend_width=64: needed a multiple of self_extend, which is 3");
  EXPECT_THAT(why({4, 128}), HasSubstr("self_extend_width=128: needed less than the 128 tokens"));
  EXPECT_THAT(why({1 << 20, 1 << 20}), HasSubstr("needed at most 65536"));
  EXPECT_EQ(why({1, 7}), "nothing is refused");
}

TEST_F(SelfExtends, ContradictionsAreRefused) {
  write(13);
  const auto model = load({4, 12});
  const auto why = [&](const auto& set) {
    EngineOptions o = options(32);
    set(o);
    test::SimDevice sim({});
    return refusal([&] { Session(*model, {host_.get(), &sim}, o); });
  };
  const auto is_refused = [&](const auto& set, const std::string& other) {
    EXPECT_THAT(why(set), testing::AllOf(HasSubstr("self_extend=4 and " + other), HasSubstr("contradict")))
        << other;
  };
  is_refused([](EngineOptions& o) { o.model.rope.scaling = RopeScaling::yarn; }, "rope");
  is_refused([](EngineOptions& o) { o.model.rope.scale = 2.0f; }, "rope");
  is_refused([](EngineOptions& o) { o.model.rope.ext_factor = 1.0f; }, "yarn");
  is_refused([](EngineOptions& o) { o.context.sparse_kv = {8, 8}; }, "sparse_kv");
  is_refused([](EngineOptions& o) { o.offload.kv_split = 64; }, "kv_split");
  is_refused([](EngineOptions& o) { o.offload.split_mode = SplitMode::tensor; }, "split_mode");
  EXPECT_EQ(why([](EngineOptions&) {}), "nothing is refused");
}

}  // namespace
}  // namespace tandem
