// Several sequences in one step: the logits of each equal those of the sequence alone, for any placement, and
// bytes match the footprint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "engine/runtime.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

class Sequences : public test::SplitRig {
 protected:
  void SetUp() override { load_both(3); }

  static EngineOptions options(int64_t n_sequences) {
    EngineOptions o;
    o.context.n_ctx = 512;
    o.context.n_ctx_sequence = 128;
    o.context.n_ubatch = 32;
    o.context.n_sequences = n_sequences;
    o.context.k_dtype = o.context.v_dtype = DType::F32;  // keeps rounding differences small
    return o;
  }

  static std::vector<int32_t> text(int sequence, int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(3 + (i * 7 + sequence * 31 + i * i * sequence) % 290);
    return ids;
  }

  // The logits after every token of a text, alone on the CPU.
  std::vector<float> alone(const Model& model, std::span<const int32_t> ids) {
    EngineOptions o = options(1);
    o.context.all_logits = true;
    Session session(model, {host_.get()}, o);
    std::vector<float> all;
    session.evaluate(ids, [&](int64_t, int64_t, std::span<const float> logits) {
      all.insert(all.end(), logits.begin(), logits.end());
    });
    return all;
  }
};

// Equal up to rounding: products of one row and of many rows sum in different orders.
TEST_F(Sequences, EachHasTheLogitsOfItselfAlone) {
  test::SimDevice sim({});
  const std::vector<Device*> both{host_.get(), &sim};
  for (const Model* model : {dense_.get(), moe_.get()}) {
    const auto n_vocab = static_cast<size_t>(model->hparams().n_vocab);
    for (const OffloadChoice& choice :
         {OffloadChoice{}, OffloadChoice{2}, OffloadChoice{4}, OffloadChoice{4, CacheOnHost{}},
          OffloadChoice{4, CacheOnHost{true}}, OffloadChoice{2, CacheOnHost{true}, 0, Streaming::prefill},
          OffloadChoice{2, CacheBesideLayers{true}, 0, Streaming::prefill}, OffloadChoice{2, PrefetchedCache{}, 0, Streaming::prefill},
          OffloadChoice{1, {}, 0, Streaming::always}}) {
      SCOPED_TRACE("-ngl " + std::to_string(choice.n_gpu_layers));
      EngineOptions o = options(4);
      o.placement = place(model->architecture(), model->weights(), both, {}, choice);
      Runtime runtime(*model, both, o);
      EXPECT_EQ(sim.used_bytes(), runtime.placement().bytes.devices[1].total());
      constexpr int kLengths[] = {70, 9, 33};
      std::vector<std::vector<int32_t>> texts;
      std::vector<std::vector<float>> expected;
      std::vector<std::unique_ptr<KvSequence>> sequences;
      for (int s = 0; s < 3; ++s) {
        texts.push_back(text(s, kLengths[s]));
        expected.push_back(alone(*model, texts.back()));
        sequences.push_back(std::unique_ptr<KvSequence>(new KvSequence(runtime.new_sequence())));
      }
      // Chunks of one sequence together with single tokens of others that start and end at different steps.
      for (int step = 0;; ++step) {
        std::vector<BatchSlice> parts;
        for (size_t s = 0; s < texts.size(); ++s) {
          const auto done = static_cast<size_t>(sequences[s]->length());
          if (done == texts[s].size() || step < static_cast<int>(s)) continue;
          const size_t n =
              (static_cast<size_t>(step) + s) % 3 == 0 ? std::min<size_t>(20, texts[s].size() - done) : 1;
          parts.push_back({sequences[s].get(), std::span(texts[s]).subspan(done, n), 1});
        }
        if (parts.empty()) break;
        const auto logits = runtime.step(parts);
        ASSERT_TRUE(logits.has_value());
        for (size_t i = 0; i < parts.size(); ++i) {
          const size_t s =
              static_cast<size_t>(std::find_if(sequences.begin(), sequences.end(),
                                               [&](const auto& q) { return q.get() == parts[i].sequence; }) -
                                  sequences.begin());
          const float* is = logits->all().data() + i * n_vocab;
          const float* was = expected[s].data() + (static_cast<size_t>(sequences[s]->length()) - 1) * n_vocab;
          double worst = 0;
          for (size_t v = 0; v < n_vocab; ++v)
            worst = std::max(worst, static_cast<double>(std::abs(is[v] - was[v])));
          ASSERT_LT(worst, 1e-5) << "step " << step << ", sequence " << s;
        }
      }
    }
  }
}

TEST_F(Sequences, AFullCacheChangesNothing) {
  EngineOptions o = options(4);
  o.context.n_ctx = 128;
  Runtime runtime(*dense_, {host_.get()}, o);
  KvSequence a = runtime.new_sequence(), b = runtime.new_sequence(), c = runtime.new_sequence();
  const std::vector<int32_t> ids = text(0, 30);
  for (KvSequence* s : {&a, &b, &a, &b}) {
    const BatchSlice part{s, ids, 1};
    runtime.step(std::span(&part, 1));
  }
  EXPECT_EQ(runtime.pool().n_free(), 0);
  const std::vector<BatchSlice> parts{{&a, std::span(ids).first(4), 1}, {&c, std::span(ids).first(1), 1}};
  try {
    runtime.step(parts);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
    EXPECT_THAT(e.what(), testing::HasSubstr("the KV cache is full"));
  }
  EXPECT_EQ(a.length(), 60);
  EXPECT_EQ(c.length(), 0);
  EXPECT_EQ(runtime.n_ubatch(), 32);  // no rung of the ladder helps
}

// The planner's prediction for a token of each sequence against the simulated time.
TEST_F(Sequences, TimeMatchesThePrediction) {
  const std::vector<DeviceRates> rates{{1e12, 1e15, 1e12, 0, 0},
                                       {2e9, 1e12, 4e7, 1e-6, 1e-7}};  // the host takes no time
  constexpr int64_t kPast = 45;
  KvConfig kv;
  kv.k_dtype = kv.v_dtype = DType::F32;
  for (const Model* model : {dense_.get(), moe_.get()}) {
    for (const int64_t n : {2, 4}) {
      for (const OffloadChoice& choice :
           {OffloadChoice{2}, OffloadChoice{4}, OffloadChoice{4, CacheOnHost{}},
            OffloadChoice{4, CacheOnHost{true}}, OffloadChoice{3, PrefetchedCache{}}, OffloadChoice{1, {}, 0, Streaming::prefill},
            OffloadChoice{1, CacheBesideLayers{true}, 0, Streaming::prefill}, OffloadChoice{1, {}, 0, Streaming::always}}) {
        SCOPED_TRACE(std::to_string(n) + " sequences, -ngl " + std::to_string(choice.n_gpu_layers) + " " +
                     std::string(streaming_name(choice.streaming)));
        const StepLoad load{n, n, kPast, n};
        const auto run_s = [&](const Segment& segment, const StepShape& shape) {
          double seconds = rates[1].stage_s;
          if (shape.n_tokens != n) return seconds;
          for (int32_t i : segment.nodes) {
            const Node& node = segment.graph->nodes[static_cast<size_t>(i)];
            seconds += node_seconds(node_work(*segment.graph, node, load, kv), rates[1]);
          }
          return seconds;
        };
        test::SimDevice sim({.times = {.bus_bytes_per_s = rates[1].bus_bytes_per_s, .run_s = run_s}});
        const std::vector<Device*> both{host_.get(), &sim};
        EngineOptions o = options(n);
        o.placement = place(model->architecture(), model->weights(), both, {}, choice);
        Runtime runtime(*model, both, o);
        std::vector<std::unique_ptr<KvSequence>> sequences;
        const std::vector<int32_t> ids = text(1, kPast - 3);
        for (int64_t s = 0; s < n; ++s) {
          sequences.push_back(std::unique_ptr<KvSequence>(new KvSequence(runtime.new_sequence())));
          for (size_t done = 0; done < ids.size(); done += 14) {
            const BatchSlice part{sequences.back().get(), std::span(ids).subspan(done, 14), 0};
            runtime.step(std::span(&part, 1));
          }
        }
        double seconds = 0;
        for (int i = 0; i < 4; ++i) {
          std::vector<BatchSlice> parts;
          for (const auto& s : sequences) parts.push_back({s.get(), std::span(ids).first(1), 1});
          const double before = sim.host_s();
          runtime.step(parts, LogitsWanted::largest);
          seconds = sim.host_s() - before;
        }
        const SessionGraphs graphs = session_graphs(model->architecture(), o.context);
        const Schedule schedule = make_schedule(graphs.decode, o.placement, 2);
        const double predicted = step_cost(graphs.decode, schedule, both, rates, graphs.kv, load).seconds;
        EXPECT_NEAR(predicted, seconds, 0.05 * seconds);
        EXPECT_EQ(sim.peak_bytes(), runtime.placement().bytes.devices[1].total());
      }
    }
  }
}

}  // namespace
}  // namespace tandem
