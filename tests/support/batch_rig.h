// Shared by the tests of batches: requests of many kinds, and the answer of each alone.
#pragma once

#include <limits>

#include "engine/batcher.h"
#include "engine/generate.h"
#include "support/split_rig.h"

namespace tandem::test {

class BatchRig : public SplitRig {
 protected:
  static constexpr int64_t kContext = 256;  // per sequence

  // F32 caches keep rounding differences so small that they change no token.
  static EngineOptions options(int64_t n_sequences, int64_t n_ctx = 2048) {
    EngineOptions o;
    o.context.n_ctx = n_ctx;
    o.context.n_ctx_sequence = kContext;
    o.context.n_ubatch = 32;
    o.context.n_sequences = n_sequences;
    o.context.k_dtype = o.context.v_dtype = DType::F32;
    return o;
  }

  // A prompt of 1 to 90 tokens, the first n_shared the same for all; an answer of 1 to 40 tokens.
  static BatchRequest request(int64_t index, int n_shared = 0) {
    BatchRequest r;
    r.index = index;
    const auto i = static_cast<int>(index);
    for (int t = 0; t < n_shared; ++t) r.prompt.push_back(3 + t * 5 % 290);
    const int n_own = 1 + i * 37 % (90 - n_shared);
    for (int t = 0; t < n_own; ++t) r.prompt.push_back(3 + (t * 7 + i * 31 + t * t * i) % 290);
    r.sampling.temp = 0;
    r.generation.n_predict = 1 + i * 11 % 40;
    return r;
  }
  static std::vector<BatchRequest> requests(int n, int n_shared = 0) {
    std::vector<BatchRequest> list;
    for (int i = 0; i < n; ++i) list.push_back(request(i, n_shared));
    return list;
  }

  // "text|reason|tokens" of a request in its own session on the CPU.
  std::string alone(const Model& model, const BatchRequest& r) {
    EngineOptions o = options(1, kContext);
    Session session(model, {host_.get()}, o);
    Sampler sampler(r.sampling, sampler_model(session));
    std::string text;
    GenerateCallbacks callbacks;
    callbacks.text = [&](std::string_view piece) { text += piece; };
    const GenerateStats stats = generate(session, sampler, r.prompt, r.generation, callbacks);
    size_t end = text.size();
    for (const std::string& stop : r.generation.stop) end = std::min(end, text.find(stop));
    return summary(text.substr(0, end), stats.reason, stats.n_generated);
  }
  std::vector<std::string> alone(const Model& model, const std::vector<BatchRequest>& list) {
    std::vector<std::string> all;
    for (const BatchRequest& r : list) all.push_back(alone(model, r));
    return all;
  }

  // The same for all requests in a batch, by index; keeps as many open as the runtime has room for.
  static std::vector<std::string> together(Batcher& batcher, const std::vector<BatchRequest>& list) {
    std::vector<std::string> all(list.size());
    size_t n_added = 0;
    do {
      while (n_added < list.size() && batcher.has_room()) batcher.add(list[n_added++]);
      batcher.step([&](BatchAnswer a) {
        std::string& answer = all.at(static_cast<size_t>(a.index));
        EXPECT_EQ(answer, "") << "answered twice: " << a.index;
        answer =
            a.error ? std::string("error: ") + a.error->what() : summary(a.text, a.reason, a.n_generated);
      });
    } while (batcher.n_open() > 0 || n_added < list.size());
    return all;
  }

 private:
  static std::string summary(const std::string& text, StopReason reason, int64_t n_generated) {
    return text + "|" + std::to_string(static_cast<int>(reason)) + "|" + std::to_string(n_generated);
  }
};

}  // namespace tandem::test
