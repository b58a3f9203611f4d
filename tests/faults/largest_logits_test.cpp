// Steps that bring the largest logits alone from a GPU: texts are those of the CPU, whatever the sampler needs; the bytes on
// the bus; failures.
#include <cmath>

#include "exec/executor.h"
#include "graph/top_k.h"
#include "support/batch_rig.h"

namespace tandem {
namespace {

class LargestLogits : public test::BatchRig {
 protected:
  void SetUp() override {
    load_both(4);
    gpu_.n_gpu_layers = 5;
  }

  EngineOptions on_gpu() const {
    EngineOptions o = BatchRig::options(1, kContext);
    o.offload = gpu_;
    return o;
  }

  std::string text_on(const std::vector<Device*>& devices, const EngineOptions& options,
                      const SamplerParams& sampling, const GenerateOptions& generation) {
    Session session(*dense_, devices, options);
    Sampler sampler(sampling, sampler_model(session));
    std::string text;
    GenerateCallbacks callbacks;
    callbacks.chosen = [&](const Continuation::Choice& choice) {
      text += std::to_string(choice.id) + " ";
      if (!choice.logprobs) return;
      for (const TokenLogprob& t : choice.logprobs->top)
        text += std::to_string(t.id) + ":" + std::to_string(t.logprob) + " ";
    };
    generate(session, sampler, prompt(37), generation, callbacks);
    return text;
  }

  OffloadOptions gpu_;
};

TEST_F(LargestLogits, TextsAreThoseOfTheCpu) {
  std::vector<SamplerParams> chains(9);
  for (SamplerParams& p : chains) p.seed = 3;
  chains[0].temp = 0;
  chains[1].temp = 2;
  chains[2].top_k = 0;
  chains[3].top_k = 64;
  chains[4].top_k = 100;
  chains[5].repeat_penalty = 1.3f;
  chains[6].mirostat = 2;
  chains[7].grammar = Grammar::parse("root ::= [a-z ]+");
  chains[8].grammar = chains[7].grammar;
  chains[8].temp = 0;
  for (size_t i = 0; i < chains.size(); ++i) {
    for (const int32_t n_logprobs : {-1, 2}) {
      GenerateOptions generation;
      generation.n_predict = 20;
      generation.n_logprobs = n_logprobs;
      test::SimDevice sim({});
      EXPECT_EQ(text_on({host_.get(), &sim}, on_gpu(), chains[i], generation),
                text_on({host_.get()}, BatchRig::options(1, kContext), chains[i], generation))
          << "chain " << i;
    }
  }
}

TEST_F(LargestLogits, BatchesOfDifferentSamplers) {
  std::vector<BatchRequest> list = requests(9);
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].sampling.seed = static_cast<int64_t>(i);
    if (i % 3 == 1) list[i].sampling.temp = 1.0f;
    if (i == 5) list[i].sampling.top_k = 0;
  }
  test::SimDevice sim({});
  EngineOptions o = BatchRig::options(4);
  o.offload = gpu_;
  Runtime runtime(*dense_, {host_.get(), &sim}, o);
  Batcher batcher(runtime, 4);
  EXPECT_EQ(together(batcher, list), alone(*dense_, list));
}

// The logits of a step stay on the device until they are asked for, and are the same then.
TEST_F(LargestLogits, AllCanBeHadLater) {
  test::SimDevice sim({});
  Session session(*dense_, {host_.get(), &sim}, on_gpu()),
      alone(*dense_, {host_.get()}, BatchRig::options(1, kContext));
  const std::span<const float> expected = alone.append(prompt(37));
  const TokenLogits some = session.append(prompt(37), LogitsWanted::largest);
  ASSERT_EQ(some.n_top(), static_cast<size_t>(kMaxTopK));
  for (size_t i = 0; i < some.n_top(); ++i)
    EXPECT_EQ(some.top_logit(i), expected[static_cast<size_t>(some.top_id(i))]);
  EXPECT_TRUE(std::ranges::equal(some.all(), expected));
  EXPECT_TRUE(std::ranges::equal(some.all(), expected)) << "once more";
  const TokenLogits here = alone.append(prompt(1), LogitsWanted::largest);
  EXPECT_EQ(here.n_top(), 0u) << "the host has all of them";
  EXPECT_EQ(here.all().size(), expected.size());
}

TEST_F(LargestLogits, BytesOfAToken) {
  test::SimDevice sim({});
  Session session(*dense_, {host_.get(), &sim}, on_gpu());
  session.append(prompt(37));
  const auto bytes_of = [&](LogitsWanted wanted) {
    const uint64_t before = sim.copied_bytes();
    session.append(std::vector<int32_t>{7}, wanted);
    return sim.copied_bytes() - before;
  };
  const auto n_vocab = static_cast<uint64_t>(dense_->hparams().n_vocab);
  EXPECT_EQ(bytes_of(LogitsWanted::all) - bytes_of(LogitsWanted::largest), 4 * n_vocab - 8 * kMaxTopK);
  EXPECT_EQ(session.placement().bytes.per_token.logits, static_cast<size_t>(8 * kMaxTopK));
}

TEST_F(LargestLogits, WhatIsNotFiniteIsFoundOnTheDevice) {
  test::TinyShape shape;
  test::TinyModel broken = test::tiny_llama(shape, 9);
  test::TinyTensor& head = broken.tensors.at("output.weight");
  const float nan = std::nanf("");
  std::memcpy(head.data.data() + 77 * 64 * sizeof(float), &nan, sizeof nan);
  broken.write(directory_.path("nan.gguf"));
  const auto model = Model::load(directory_.path("nan.gguf"));
  for (const LogitsWanted wanted : {LogitsWanted::largest, LogitsWanted::all}) {
    test::SimDevice sim({});
    EngineOptions o = on_gpu();
    o.offload.n_gpu_layers = 3;
    Session session(*model, {host_.get(), &sim}, o);
    try {
      session.append(prompt(5), wanted);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::numeric);
      EXPECT_NE(std::string(e.what()).find("the logits at position 4 are not finite"), std::string::npos)
          << e.what();
    }
  }
}

// A copy that fails when they are asked for is an error then; the step itself is done.
TEST_F(LargestLogits, ACopyThatFailsLaterIsAnError) {
  int64_t n_copies = 0;
  {
    test::SimDevice works({});
    Session session(*dense_, {host_.get(), &works}, on_gpu());
    session.append(prompt(5), LogitsWanted::largest);
    n_copies = works.n_copies();
  }
  test::SimDevice sim({.fail_copy = n_copies});
  Session session(*dense_, {host_.get(), &sim}, on_gpu());
  const TokenLogits logits = session.append(prompt(5), LogitsWanted::largest);
  EXPECT_THROW(logits.all(), Error);
  EXPECT_EQ(session.n_past(), 5);
  EXPECT_EQ(session.append(std::vector<int32_t>{7}).size(), logits.all().size());
}

}  // namespace
}  // namespace tandem
