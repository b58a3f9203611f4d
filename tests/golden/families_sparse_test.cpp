// Every architecture with caches that are read sparsely (--sparse-kv): dense logits where nothing is left out, others where
// something is, the same wherever the layers are, and a refusal where no layer attends to all positions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/family_model.h"
#include "support/gguf_bytes.h"
#include "support/sim_device.h"

namespace tandem {
namespace {

using Logits = std::vector<float>;

class FamiliesSparse : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    model_ = Model::load(test::convert_family(family_, folder_));
    ids_ = family_.ids();
    for (int i = 0; i < model_->hparams().n_layer; ++i) {
      const KvShape shape = model_->architecture().kv_shape(i);
      n_indexed_ += shape.has_heads() && shape.window == 0;
    }
  }

  EngineOptions options(const SparseReads& reads) const {
    EngineOptions o;
    o.context.n_ctx = family_.n_ctx() > 0 ? family_.n_ctx() : 160;
    o.context.n_ubatch = 24;
    o.context.n_deferred = family_.n_deferred();
    o.context.sparse_kv = reads;
    return o;
  }

  // The last tokens are decoded, from the 24th on.
  Logits logits(const std::vector<Device*>& devices, const EngineOptions& o) const {
    Session session(*model_, devices, o);
    session.append(std::span(ids_).first(24));
    Logits all;
    for (size_t i = 24; i < ids_.size(); ++i) {
      const std::span<const float> row = session.append(std::span(ids_).subspan(i, 1));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  test::Family family_;
  test::TempDir folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
  int n_indexed_ = 0;
};

TEST_P(FamiliesSparse, DenseWhereNothingIsLeftOut) {
  const auto host = cpu::make_cpu_device({1, 1});
  if (n_indexed_ == 0) {
    try {
      const Session session(*model_, {host.get()}, options({1, 1}));
      ADD_FAILURE() << "not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_THAT(e.what(), testing::HasSubstr(
                                "sparse_kv=1,1: no layer of this model attends to keys of all positions"));
    }
    return;
  }
  const Logits dense = logits({host.get()}, options({}));
  EXPECT_EQ(logits({host.get()}, options({4, 1000})), dense);
  const Logits sparse = logits({host.get()}, options({4, 2}));  // and the newest 8 and the first 4
  EXPECT_NE(sparse, dense);
  for (const float x : sparse) ASSERT_LT(x, INFINITY);

  EngineOptions o = options({4, 2});
  o.offload.n_gpu_layers = 1;
  o.offload.kv_on_host = Toggle::on;
  test::SimDevice sim({});
  EXPECT_EQ(logits({host.get(), &sim}, o), sparse);
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesSparse, testing::ValuesIn(test::family_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
