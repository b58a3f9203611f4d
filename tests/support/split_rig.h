// Shared by the tests of models on several devices: the host, tiny models, logits to compare, and injected
// failures.
#pragma once

#include <gtest/gtest.h>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/gguf_bytes.h"
#include "support/sim_device.h"
#include "support/tiny_model.h"

namespace tandem::test {

class SplitRig : public testing::Test {
 protected:
  std::unique_ptr<Model> load(const std::string& name, const TinyShape& shape) {
    const std::string path = directory_.path(name);
    tiny_llama(shape, 9).write(path);
    return Model::load(path);
  }

  // Loads dense_, and moe_ with experts.
  void load_both(int64_t n_layer) {
    TinyShape shape;
    shape.n_layer = n_layer;
    dense_ = load("dense.gguf", shape);
    shape.n_expert = 5;
    shape.n_expert_used = 2;
    moe_ = load("moe.gguf", shape);
  }

  // A small micro-batch, so that prompts take several steps; no out-of-memory ladder, so that a failure is an
  // error.
  static EngineOptions options(const OffloadOptions& flags = {}, DType cache = DType::F16) {
    EngineOptions o;
    o.context.n_ubatch = 16;
    o.context.k_dtype = o.context.v_dtype = cache;
    o.offload = flags;
    o.oom_ladder = false;
    return o;
  }

  // A session placed by `choice`, without the planner.
  std::unique_ptr<Session> session(const Model& model, const std::vector<Device*>& devices,
                                   const OffloadChoice& choice, size_t n_slots = 2) {
    EngineOptions o = options();
    o.placement = place(model.architecture(), model.weights(), devices, {}, choice);
    o.placement.n_stream_slots = n_slots;
    return std::make_unique<Session>(model, devices, o);
  }

  // Tokens of a tiny model's vocabulary.
  static std::vector<int32_t> prompt(int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(3 + i * 7 % 290);
    return ids;
  }

  // As a text is generated.
  static void decode_one(Session& session) {
    const int32_t id = 9;
    session.append(std::span(&id, 1), LogitsWanted::largest);
  }

  // Logits after a prompt of 37 tokens and after each of three decoded ones.
  static std::vector<float> logits(Session& session) {
    std::vector<float> all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    add(session.append(prompt(37)));
    for (int32_t id : {5, 280, 33}) add(session.append(std::span(&id, 1)));
    return all;
  }

  // Logits of four steps of a token and three guesses after a prompt of 37 tokens; the guesses are taken back.
  static std::vector<float> guessed_logits(Session& session) {
    session.append(prompt(37));
    std::vector<float> all;
    for (int i = 0; i < 4; ++i) {
      const std::vector<int32_t> tokens{5 + i, 280, 33, 7};
      const std::span<const float> rows = session.append_all(tokens);
      all.insert(all.end(), rows.begin(), rows.end());
      session.truncate(37 + i + 1);
    }
    return all;
  }

  std::vector<float> cpu_logits(const Model& model, const EngineOptions& of = options()) {
    Session alone(model, {host_.get()}, of);
    return logits(alone);
  }

  // Fails each allocation in turn, and every stride-th copy: run(device) must throw and leave no memory allocated. What it
  // copies may depend on how fast a disk is: then it need not come to a copy that another run came to.
  template <class Run>
  static void expect_clean_failures(const Run& run, int64_t stride = 1) {
    SimDevice works({});
    run(works);
    for (int64_t i = 0; i < works.n_allocs(); ++i) {
      SimDevice sim({.fail_alloc = i});
      EXPECT_THROW(run(sim), Error) << "allocation " << i;
      EXPECT_EQ(sim.used_bytes(), 0u);
    }
    for (int64_t i = 0; i < works.n_copies(); i += stride) {
      SimDevice sim({.fail_copy = i});
      bool threw = false;
      try {
        run(sim);
      } catch (const Error&) {
        threw = true;
      }
      EXPECT_EQ(threw, sim.n_copies() > i) << "copy " << i;
      EXPECT_EQ(sim.used_bytes(), 0u);
    }
  }

  TempDir directory_;
  std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
  std::unique_ptr<Model> dense_, moe_;
};

}  // namespace tandem::test
