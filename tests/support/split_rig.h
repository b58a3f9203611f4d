// What the tests of models that run on several devices share: the host, tiny models, and logits to compare.
#pragma once

#include <gtest/gtest.h>

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

  // Tokens that are all in a tiny model's vocabulary.
  static std::vector<int32_t> prompt(int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(3 + i * 7 % 290);
    return ids;
  }

  static void decode_one(Session& session) {
    const int32_t id = 9;
    session.append(std::span(&id, 1));
  }

  // Logits after a prompt of 37 tokens and after each of three decoded ones.
  static std::vector<float> logits(Session& session) {
    std::vector<float> all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    add(session.append(prompt(37)));
    for (int32_t id : {5, 280, 33}) add(session.append(std::span(&id, 1)));
    return all;
  }

  std::vector<float> cpu_logits(const Model& model, const SessionOptions& options) {
    Session session(model, {host_.get()}, options);
    return logits(session);
  }

  TempDir directory_;
  std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
};

}  // namespace tandem::test
