// Every architecture after tokens in the middle were dropped: what follows them is moved in the cache, where that is possible.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "cpu/cpu_device.h"
#include "engine/session_file.h"
#include "gguf/quants.h"
#include "kv/block_store.h"
#include "support/batch_rig.h"
#include "support/family_model.h"
#include "support/gguf_bytes.h"

namespace tandem {
namespace {

using Rows = std::vector<float>;

class FamiliesShift : public test::BatchRig, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    model_ = Model::load(test::convert_family(family_, folder_));
    ids_ = family_.ids();
    ids_.resize(std::min<size_t>(ids_.size(), 75));
  }

  Session open(DType k = DType::F32, int64_t n_ctx = 0) const {
    EngineOptions o;
    o.context.n_ctx = n_ctx ? n_ctx : family_.n_ctx();
    o.context.n_ubatch = 24;
    o.context.n_deferred = family_.n_deferred();
    o.context.k_dtype = o.context.v_dtype = k;
    return Session(*model_, {host_.get()}, o);
  }
  // Nothing of these families can be moved: states, rows that are no keys, and keys with a norm after their rotation.
  bool is_moved() const {
    static const std::set<std::string> others = {"deepseek_v2",     "deepseek_v2_lite", "deepseek_v3",
                                                 "deepseek_v3_fp8", "glm4_moe_lite",    "hunyuan_moe"};
    return !model_is_recurrent() && !others.contains(GetParam());
  }
  bool model_is_recurrent() const { return open().is_recurrent(); }

  // [n_cached, n_head, head_dim]
  static Rows rows(const Session& session, size_t layer, KvHalf half) {
    const KvLayer shape = kv_layer_shape(session.kv_config(), layer);
    const bool keys = half == KvHalf::keys;
    const DType dtype = keys ? shape.k_dtype : shape.v_dtype;
    const int64_t n = session.n_cached() * shape.n_head_kv * (keys ? shape.head_dim_k : shape.head_dim_v);
    std::vector<std::byte> bytes(row_bytes(dtype, n));
    session.read_kv(layer, half, bytes.data());
    Rows floats(static_cast<size_t>(n));
    dequantize_row(dtype, bytes.data(), floats.data(), n);
    return floats;
  }
  static double largest_difference(const Rows& a, const Rows& b) {
    EXPECT_EQ(a.size(), b.size());
    double d = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      d = std::max(d, std::abs(static_cast<double>(a[i]) - b[i]));
    return d;
  }

  test::Family family_;
  test::TempDir folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
};

TEST_P(FamiliesShift, MovedKeysAreThoseOfTheirNewPositions) {
  std::mt19937 random(std::random_device{}());
  Session session = open();
  for (int round = 0; round < 4; ++round) {
    const auto n = static_cast<int64_t>(ids_.size());
    const int64_t n_keep = static_cast<int64_t>(random() % 40),
                  n_drop = 1 + static_cast<int64_t>(random() % 30);
    SCOPED_TRACE("keeps " + std::to_string(n_keep) + ", drops " + std::to_string(n_drop));
    session.truncate(0);
    session.append(ids_);
    std::vector<Rows> keys, values;
    for (size_t layer = 0; layer < session.kv_config().layers.size(); ++layer) {
      if (!is_moved() || !session.kv_config().layers[layer].has_rows()) continue;
      keys.push_back(rows(session, layer, KvHalf::keys));
      values.push_back(rows(session, layer, KvHalf::values));
    }
    ASSERT_EQ(session.shift(n_keep, n_drop), is_moved());
    if (!is_moved()) {
      EXPECT_EQ(session.n_past(), n);
      return;
    }
    std::vector<int32_t> left(ids_.begin(), ids_.begin() + n_keep);
    left.insert(left.end(), ids_.begin() + n_keep + n_drop, ids_.end());
    EXPECT_THAT(session.tokens(), testing::ElementsAreArray(left));
    EXPECT_EQ(session.n_cached(), n - n_drop);
    EXPECT_EQ(session.n_exact(), n_keep);
    // What the first layer caches of a token depends on nothing before it.
    Session fresh = open();
    fresh.append(left);
    for (const KvHalf half : {KvHalf::keys, KvHalf::values})
      EXPECT_LT(largest_difference(rows(session, 0, half), rows(fresh, 0, half)), 2e-5);
    // In all layers values are moved as they are, and keys are rotated: their lengths stay.
    for (size_t layer = 0, i = 0; layer < session.kv_config().layers.size(); ++layer) {
      if (!session.kv_config().layers[layer].has_rows()) continue;
      const auto expect_moved = [&](Rows before, KvHalf half, auto&& of_row) {
        const Rows after = rows(session, layer, half);
        const size_t n_row = before.size() / static_cast<size_t>(n);
        before.erase(before.begin() + n_keep * static_cast<int64_t>(n_row),
                     before.begin() + (n_keep + n_drop) * static_cast<int64_t>(n_row));
        ASSERT_EQ(before.size(), after.size());
        for (size_t row = 0; row < after.size(); row += n_row)
          of_row(std::span(before).subspan(row, n_row), std::span(after).subspan(row, n_row));
      };
      expect_moved(values[i], KvHalf::values, [](std::span<float> before, std::span<const float> after) {
        EXPECT_TRUE(std::ranges::equal(before, after));
      });
      expect_moved(keys[i], KvHalf::keys, [](std::span<float> before, std::span<const float> after) {
        double a = 0, b = 0;
        for (size_t k = 0; k < after.size(); ++k) a += std::pow(before[k], 2), b += std::pow(after[k], 2);
        EXPECT_NEAR(a, b, 1e-4 * a);
      });
      ++i;
    }
    for (const float logit : session.append(std::span(ids_).first(3))) ASSERT_TRUE(std::isfinite(logit));
    session.truncate(n_keep);
    EXPECT_EQ(session.n_exact(), n_keep);
    session.append(std::span(ids_).subspan(static_cast<size_t>(n_keep)));  // exact again
    EXPECT_EQ(session.n_exact(), n);
  }
}

TEST_P(FamiliesShift, InSixteenBitsButNotInBlocks) {
  if (!is_moved()) GTEST_SKIP() << "not moved";
  const auto left = [&] {
    std::vector<int32_t> ids(ids_.begin(), ids_.begin() + 10);
    ids.insert(ids.end(), ids_.begin() + 40, ids_.end());
    return ids;
  }();
  for (const DType dtype : {DType::F16, DType::BF16}) {
    Session session = open(dtype), fresh = open(dtype);
    session.append(ids_);
    ASSERT_TRUE(session.shift(10, 30));
    fresh.append(left);
    const Rows a = rows(session, 0, KvHalf::keys), b = rows(fresh, 0, KvHalf::keys);
    double largest = 0;
    for (const float x : b) largest = std::max(largest, std::abs(static_cast<double>(x)));
    EXPECT_LT(largest_difference(a, b), largest * (dtype == DType::F16 ? 1.5e-3 : 1.2e-2));
  }
  const int64_t head_dim = kv_layer_shape(open().kv_config(), 0).head_dim_k;
  if (head_dim % 32 != 0) return;
  Session session = open(DType::Q8_0);
  session.append(ids_);
  EXPECT_FALSE(session.shift(10, 30));
  EXPECT_THAT(session.tokens(), testing::ElementsAreArray(ids_));
}

// A saved session remembers from where on it was moved, and a store is given nothing of it.
TEST_P(FamiliesShift, NothingMovedIsKept) {
  if (!is_moved()) GTEST_SKIP() << "not moved";
  Session session = open(DType::F32, 256);
  session.append(ids_);
  ASSERT_TRUE(session.shift(33, 10));
  save_session(session, folder_.path("saved"));
  Session other = open(DType::F32, 256);
  const SessionFile file(folder_.path("saved"), other);
  file.restore(other, ids_.size() - 10);
  EXPECT_EQ(other.n_exact(), 33);
  file.restore(other, 20);
  EXPECT_EQ(other.n_exact(), 20);
  file.restore(other, ids_.size() - 10);

  BlockStore store(folder_.path("store"));
  other.keep_in(store);
  other.keep();
  store.flush();
  Session third = open(DType::F32, 256);
  third.keep_in(store);
  EXPECT_EQ(third.load_kept(other.tokens()), 32);  // a whole block; 64 tokens are cached
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesShift, testing::ValuesIn(test::family_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
