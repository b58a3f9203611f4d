// Types and rotation of the cache by layer: what the options say, what is refused, and the bytes that follow.
#include "plan/kv_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/setting.h"
#include "support/errors.h"

namespace tandem {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr DType F16 = DType::F16, Q8 = DType::Q8_0, Q4 = DType::Q4_0;

KvConfig config_of(std::vector<KvShape> layers) {
  KvConfig kv;
  kv.n_ctx = 64;
  kv.layers = std::move(layers);
  return kv;
}
KvConfig four_layers() {
  return config_of(std::vector<KvShape>(4, KvShape{2, 64, 64}));
}

std::string parse_refusal(std::string_view text) {
  return error_of(ErrorCode::usage, [&] { parse_kv_type_layers(text); });
}
std::string set_refusal(const ContextOptions& options, KvConfig kv = four_layers()) {
  return error_of(ErrorCode::usage, [&] { set_kv_formats(kv, options); });
}

ContextOptions with_ranges(std::string_view text) {
  ContextOptions o;
  o.kv_type_layers = parse_kv_type_layers(text);
  return o;
}

TEST(KvFormats, RangesAreParsedAndWritten) {
  const std::vector<KvTypeRange> ranges = parse_kv_type_layers("0-3=q8_0/q4_0,5=F16,7-=iq4_nl");
  EXPECT_THAT(ranges, ElementsAre(KvTypeRange{0, 3, Q8, Q4}, KvTypeRange{5, 5, F16, F16},
                                  KvTypeRange{7, std::nullopt, DType::IQ4_NL, DType::IQ4_NL}));
  EXPECT_EQ(kv_type_layers_text(ranges), "0-3=q8_0/q4_0,5=f16,7-=iq4_nl");
}

TEST(KvFormats, OtherTextsAreRefused) {
  for (const char* text : {"", "0", "q8_0", "=q8_0", "-3=q8_0", "a=q8_0", "1-0=q8_0", "0-3-4=q8_0", "0=q8_0,",
                           ",0=q8_0", "99999999999=q8_0", "0- =q8_0", " 0=q8_0"}) {
    EXPECT_THAT(parse_refusal(text), HasSubstr("needed LAYERS=TYPE or LAYERS=KEYS/VALUES")) << text;
  }
  for (const char* text : {"0=", "0=q2_k", "0=q8_0/", "0=/q8_0", "0=q8_0/q4_0/q4_0", "0=q8_0 "}) {
    EXPECT_THAT(parse_refusal(text), HasSubstr("is none of f32, f16, bf16, q8_0")) << text;
  }
}

TEST(KvFormats, LayersHaveTheTypesOfTheirRange) {
  KvConfig kv = four_layers();
  ContextOptions o = with_ranges("1-2=q8_0/q4_0");
  o.k_dtype = DType::F32;
  set_kv_formats(kv, o);
  EXPECT_EQ(kv.format(0), (KvFormat{DType::F32, F16, {}}));
  EXPECT_EQ(kv.format(1), (KvFormat{Q8, Q4, {}}));
  EXPECT_EQ(kv.format(2), (KvFormat{Q8, Q4, {}}));
  EXPECT_EQ(kv.format(3), (KvFormat{DType::F32, F16, {}}));
  EXPECT_EQ(kv_dtype_text(kv, &KvFormat::k), "F32+Q8_0");
  EXPECT_EQ(kv_layer_bytes(kv, 0), 64u * 2 * (64 * 4 + 64 * 2));
  EXPECT_EQ(kv_layer_bytes(kv, 1), 64u * 2 * (2 * 34 + 2 * 18));
  EXPECT_EQ(kv_layer_shape(kv, 2).v_dtype, Q4);
}

TEST(KvFormats, UnknownAndOverlappingLayersAreRefused) {
  EXPECT_THAT(set_refusal(with_ranges("0-4=q8_0")),
              HasSubstr("kv_type_layers=0-4=q8_0: there is no layer 4, the model has layers 0 to 3"));
  EXPECT_THAT(set_refusal(with_ranges("4-=q8_0")), HasSubstr("there is no layer 4"));
  EXPECT_THAT(set_refusal(with_ranges("0-2=q8_0,2-=q4_0")),
              HasSubstr("kv_type_layers=0-2=q8_0,2-=q4_0: layer 2 is in two ranges"));
  KvConfig narrow = four_layers();
  narrow.layers[2].head_dim_v = 80;
  EXPECT_THAT(set_refusal(with_ranges("2=f16/q4_0"), narrow),
              HasSubstr("do not divide this model's head size of 80"));
  set_kv_formats(narrow, with_ranges("0-1=q4_0,3=q4_0"));
}

TEST(KvFormats, SparseReadsAreTwoNumbers) {
  EXPECT_EQ(parse_sparse_kv("16,2048"), (SparseReads{16, 2048}));
  EXPECT_EQ(sparse_kv_text({16, 2048}), "16,2048");
  for (const char* text :
       {"", "16", "16,", ",16", "0,16", "16,0", "16,-1", "16,2048,3", "16, 2048", "a,b", "16,3000000000"}) {
    try {
      parse_sparse_kv(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_THAT(e.what(), HasSubstr("needed R,K: components of keys and positions, both at least 1"))
          << text;
    }
  }
}

TEST(KvFormats, LayersThatAttendToAllPositionsAreIndexed) {
  KvConfig kv = four_layers();
  kv.layers[1].window = 128;
  kv.layers[2].head_dim_v = 0;  // rows of latent attention
  ContextOptions o;
  o.sparse_kv = {16, 32};
  set_kv_formats(kv, o);
  EXPECT_TRUE(kv.format(0).indexed);
  EXPECT_FALSE(kv.format(1).indexed);
  EXPECT_FALSE(kv.format(2).indexed);
  EXPECT_FALSE(kv_layer_shape(kv, 0).indexed);
  EXPECT_TRUE(kv_layer_shape(kv, 0, DeviceId::host()).indexed);
  EXPECT_FALSE(kv_layer_shape(kv, 0, DeviceId::at(1)).indexed);
  EXPECT_EQ(kv_layer_bytes(kv, 0, DeviceId::at(1)), kv_layer_bytes(kv, 0));
  EXPECT_GT(kv_layer_bytes(kv, 0, DeviceId::host()), kv_layer_bytes(kv, 0));
  for (KvShape& shape : kv.layers) shape.window = 128;
  EXPECT_THAT(set_refusal(o, kv),
              HasSubstr("sparse_kv=16,32: no layer of this model attends to keys of all positions"));
}

TEST(KvFormats, AutomaticallyFourBitsAreRotated) {
  ContextOptions o;
  o.kv_rotate = Toggle::automatic;
  o.k_dtype = Q8;
  o.v_dtype = Q4;
  o.kv_type_layers = parse_kv_type_layers("1=iq4_nl/q5_0");
  KvConfig kv = four_layers();
  kv.layers[2].head_dim_v = 96;
  set_kv_formats(kv, o);
  EXPECT_EQ(kv.format(0).rotation, (KvRotation{0, 64}));
  EXPECT_EQ(kv.format(1).rotation, (KvRotation{64, 0}));
  EXPECT_EQ(kv.format(2).rotation, (KvRotation{0, 32}));
  EXPECT_EQ(kv_rotation_text(kv), "keys of 1 layer, values of 3 layers");
  o.kv_rotate = ContextOptions{}.kv_rotate;
  set_kv_formats(kv, o);
  EXPECT_EQ(kv.format(1).rotation, KvRotation{});
  EXPECT_EQ(kv_rotation_text(kv), "");
  o.kv_rotate = Toggle::on;
  set_kv_formats(kv, o);
  EXPECT_EQ(kv.format(0).rotation, (KvRotation{64, 64}));
}

TEST(KvFormats, WhatHasNoHeadsIsLeftOut) {
  ContextOptions o;
  o.kv_rotate = Toggle::on;
  KvConfig kv = config_of({KvShape{1, 576, 0}, KvShape{0, 0, 0, 96, 1024}, KvShape{2, 64, 64}, KvShape{}});
  set_kv_formats(kv, o);
  EXPECT_EQ(kv.format(0).rotation, KvRotation{});
  EXPECT_EQ(kv.format(1).rotation, KvRotation{});
  EXPECT_EQ(kv.format(2).rotation, (KvRotation{64, 64}));
  EXPECT_EQ(kv.format(3).rotation, KvRotation{});
  EXPECT_EQ(kv_rotation_text(kv),
            "keys of 1 layer, values of 1 layer; not recurrent states and rows of latent attention");
  kv.layers.erase(kv.layers.begin() + 2);
  EXPECT_THAT(set_refusal(o, kv), HasSubstr("kv_rotate=on: this model caches no heads"));
  EXPECT_THAT(set_refusal(o, config_of({KvShape{2, 72, 40}})),
              HasSubstr("kv_rotate=on: 16 does not divide the heads of this model, of 72 and 40 columns"));
  o.kv_rotate = Toggle::automatic;
  o.k_dtype = o.v_dtype = F16;
  set_kv_formats(kv, o);
}

TEST(KvFormats, GroupedTypesAreForHeads) {
  ContextOptions o;
  o.n_sequences = 2;
  o.n_ubatch = 100;
  o.k_dtype = *find_cache_dtype("kivi4");
  o.v_dtype = *find_cache_dtype("KIVI2");
  KvConfig kv = four_layers();
  kv.n_ctx = 4096;
  set_kv_formats(kv, o);
  EXPECT_TRUE(kv.is_grouped());
  const size_t n_open = 2 * 6 + 4;  // 128 tokens of each, anywhere in blocks, and of a step
  EXPECT_EQ(kv_layer_bytes(kv, 0), 2 * (4096 * (40 + 24) + n_open * 32 * 2 * 128));
  kv.n_ctx = 64;
  EXPECT_EQ(kv_layer_bytes(kv, 0), 2 * (64 * (40 + 24) + 2u * 32 * 2 * 128));
  EXPECT_THAT(set_refusal(o, config_of({KvShape{1, 576, 0}})),
              HasSubstr("layer 0 caches rows of latent attention"));
  EXPECT_THAT(set_refusal(o, config_of({KvShape{2, 80, 80}})), HasSubstr("use f16"));
  o.sparse_kv = {8, 16};
  EXPECT_THAT(set_refusal(o), HasSubstr("sparse_kv=8,16: KIVI4 and KIVI2 caches are read as a whole"));
}

}  // namespace
}  // namespace tandem
