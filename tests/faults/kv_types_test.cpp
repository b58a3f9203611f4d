// Caches whose layers have types of their own (--kv-type-layers): the logits of the CPU at every placement, memory as
// planned, saved and loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/session_file.h"
#include "plan/kv_formats.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class KvTypes : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 5, kContext = 320;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_head = 2;  // heads of 32: whole blocks of the quantized cache types
    model_ = load("tiny.gguf", shape);
  }

  static EngineOptions options(const char* layers = "0-1=q8_0/q4_0,3=f32,4-=iq4_nl/f16",
                               const OffloadOptions& flags = {}) {
    EngineOptions o = SplitRig::options(flags);
    o.context.n_ctx = kContext;
    o.context.kv_type_layers = parse_kv_type_layers(layers);
    o.context.kv_rotate = Toggle::automatic;  // of the layers with four bits
    return o;
  }

  static double difference(std::span<const float> got, std::span<const float> want) {
    EXPECT_EQ(got.size(), want.size());
    double most = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      most = std::max<double>(most, std::fabs(got[i] - want[i]));
      largest = std::max<double>(largest, std::fabs(want[i]));
    }
    return most / largest;
  }

  std::unique_ptr<Model> model_;
};

TEST_F(KvTypes, EveryPlacementGivesTheLogitsOfTheCpuInThePlannedBytes) {
  const std::vector<float> expected = cpu_logits(*model_, options());
  EXPECT_NE(cpu_logits(*model_, options("0=q8_0/q4_0")), expected);
  for (const int64_t ngl : {int64_t{1}, int64_t{3}, kLayers + 1}) {
    for (const int cache : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "-ngl " << ngl << " cache " << cache);
      OffloadOptions flags;
      flags.n_gpu_layers = ngl;
      flags.kv_on_host = on_or_off(cache == 1);
      flags.kv_prefetched = cache == 2;
      if (cache == 3) flags.kv_split = 20;
      test::SimDevice sim({});
      Session session(*model_, {host_.get(), &sim}, options("0-1=q8_0/q4_0,3=f32,4-=iq4_nl/f16", flags));
      const std::vector<float> got = logits(session);
      if (cache == 3) {
        EXPECT_LT(difference(got, expected), 1e-4);
      } else {
        EXPECT_EQ(got, expected);
      }
      EXPECT_EQ(sim.used_bytes(), session.placement().bytes.devices[1].total());
      size_t kv = 0;
      for (const DeviceBytes& bytes : session.placement().bytes.devices) kv += bytes.kv;
      EXPECT_EQ(session.kv_bytes(), kv);
    }
  }
}

TEST_F(KvTypes, ALayersBytesAreThoseOfItsTypes) {
  Session session(*model_, {host_.get()}, options());
  const auto n_rows = static_cast<size_t>(kContext * model_->hparams().n_head_kv);
  const size_t f16 = 64, f32 = 128, q8 = 34, four_bits = 18;  // of a row of 32
  EXPECT_EQ(session.kv_bytes(), n_rows * (2 * (q8 + four_bits) + 2 * f16 + 2 * f32 + (four_bits + f16)));
}

TEST_F(KvTypes, SavedSessionsAreConvertedToOtherTypes) {
  const std::string path = directory_.path("saved");
  Session first(*model_, {host_.get()}, options());
  first.append(prompt(40));
  save_session(first, path);
  const std::vector<float> expected = logits(first);
  Session same(*model_, {host_.get()}, options());
  SessionFile(path, same).restore(same, 40);
  EXPECT_EQ(logits(same), expected);
  Session other(*model_, {host_.get()}, options("0-=f32"));
  SessionFile(path, other).restore(other, 40);
  EXPECT_LT(difference(logits(other), expected), 0.2);
}

TEST_F(KvTypes, UnknownLayersAreRefused) {
  try {
    const Session session(*model_, {host_.get()}, options("2-5=q8_0"));
    ADD_FAILURE() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(),
                HasSubstr("kv_type_layers=2-5=q8_0: there is no layer 5, the model has layers 0 to 4"));
  }
}

}  // namespace
}  // namespace tandem
