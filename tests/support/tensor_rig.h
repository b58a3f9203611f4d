// SplitRig with several simulated GPUs that compute each layer together.
#pragma once

#include <algorithm>
#include <cmath>

#include "support/split_rig.h"

namespace tandem::test {

// A host and some simulated GPUs.
class SimMachine {
 public:
  SimMachine(Device& host, size_t n_gpus, const SimOptions& like = {}) : devices_{&host} {
    for (size_t i = 0; i < n_gpus; ++i) {
      SimOptions options = like;
      options.name = "SIM" + std::to_string(i);
      gpus_.push_back(std::make_unique<SimDevice>(options));
      devices_.push_back(gpus_.back().get());
    }
  }

  const std::vector<Device*>& devices() const { return devices_; }
  SimDevice& gpu(size_t i) { return *gpus_[i]; }
  int64_t n_side_copies() const {
    int64_t sum = 0;
    for (const auto& gpu : gpus_) sum += gpu->n_side_copies();
    return sum;
  }
  uint64_t copied_bytes() const {
    uint64_t sum = 0;
    for (const auto& gpu : gpus_) sum += gpu->copied_bytes();
    return sum;
  }

 private:
  std::vector<std::unique_ptr<SimDevice>> gpus_;
  std::vector<Device*> devices_;
};

class TensorRig : public SplitRig {
 protected:
  // Two models of three layers with eight heads, and the mixture with five experts, which two GPUs cannot share evenly.
  void load_divisible() {
    shape_.n_layer = 3;
    shape_.n_head = 8;
    shape_.n_head_kv = 4;
    dense_ = load("dense.gguf", shape_);
    TinyShape moe = shape_;
    moe.n_expert = 5;
    moe.n_expert_used = 2;
    moe_ = load("moe.gguf", moe);
  }

  static OffloadOptions divided(std::vector<double> shares) {
    OffloadOptions flags;
    flags.n_gpu_layers = 99;
    flags.split_mode = SplitMode::tensor;
    flags.tensor_split = std::move(shares);
    return flags;
  }

  // Expects that a failed copy or run of the second of two GPUs is an error that leaves no memory in use: of each copy_step-th and
  // run_step-th. use(devices) makes a session on the host and both, and takes steps.
  template <class Use>
  void expect_failures_are_errors(const Use& use, int64_t copy_step, int64_t run_step) {
    const auto run = [&](SimOptions second) {
      second.name = "SIM1";
      SimDevice first({.name = "SIM0"}), other(second);
      use(std::vector<Device*>{host_.get(), &first, &other});
      EXPECT_EQ(first.used_bytes() + other.used_bytes(), 0u);
      return std::pair(other.n_copies(), other.n_runs());
    };
    const auto [n_copies, n_runs] = run({});
    EXPECT_GT(std::min(n_copies, n_runs), run_step);
    for (int64_t i = 0; i < n_copies; i += copy_step) EXPECT_THROW(run({.fail_copy = i}), Error) << i;
    for (int64_t i = 0; i < n_runs; i += run_step) EXPECT_THROW(run({.fail_run = i}), Error) << i;
  }

  // Speeds of a host and n GPUs with which a tiny model's prompts are faster in parts (exec/parts.h).
  static std::vector<DeviceRates> rates_for_parts(size_t n) {
    std::vector<DeviceRates> list{{1e13, 1e6, 1e13, 0, 0}};  // the host adds sums, and computes slowly
    list.resize(n + 1, DeviceRates{1e13, 1e9, 1e7, 0, 0});
    return list;
  }
  static PrefillParts parts_of(const Session& session) {
    return session.placement().placement.parallel.value().parts;
  }

  static float largest(std::span<const float> list) {
    float most = 0;
    for (const float x : list) most = std::max(most, std::fabs(x));
    return most;
  }

  // The largest difference, as a share of the largest value.
  static float apart(std::span<const float> got, std::span<const float> expected) {
    EXPECT_EQ(got.size(), expected.size());
    float most = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const float difference = std::fabs(got[i] - expected[i]);
      most = difference <= most ? most : difference;  // NaN stays
    }
    return most / largest(expected);
  }

  // Memory of every GPU, and the bytes over its link for one more token, are as planned.
  static void expect_as_planned(Session& session, SimMachine& machine) {
    const uint64_t before = machine.copied_bytes();
    decode_one(session);
    const BusBytes& bus = session.placement().bytes.per_token;
    uint64_t planned = bus.activations + bus.logits + bus.inputs;
    planned += bus.inputs_per_block * static_cast<uint64_t>((session.n_past() + 31) / 32);
    for (const size_t n_bytes : bus.collectives) planned += n_bytes;
    EXPECT_EQ(machine.copied_bytes() - before, planned);
    for (size_t d = 1; d < machine.devices().size(); ++d) {
      EXPECT_EQ(machine.gpu(d - 1).used_bytes(), session.placement().bytes.devices[d].total()) << d;
    }
  }

  TinyShape shape_;
};

}  // namespace tandem::test
