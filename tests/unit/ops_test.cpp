// The inputs of an op: the tensors that it has, of all its fields, in their order, and nothing else.
#include "graph/ops.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace tandem {
namespace {

using TensorIds = std::vector<TensorId>;

TensorIds visited(const Op& op) {
  TensorIds ids;
  for_each_input(op, [&](TensorId id) { ids.push_back(id); });
  return ids;
}

template <class AnyOp>
AnyOp with(AnyOp op, const TensorIds& ids, const std::vector<TensorId AnyOp::*>& fields) {
  EXPECT_EQ(ids.size(), fields.size());
  for (size_t i = 0; i < ids.size(); ++i) op.*fields[i] = ids[i];
  return op;
}

// An op whose fields, in the order that arenas and weight lists depend on, are the given tensors.
template <class AnyOp>
void check(const std::vector<TensorId AnyOp::*>& fields, const AnyOp& op = {}) {
  SCOPED_TRACE(std::string(op_name(op)));
  EXPECT_EQ(visited(op), TensorIds()) << "without tensors";
  TensorIds all(fields.size());
  std::iota(all.begin(), all.end(), 10);
  EXPECT_EQ(visited(with(op, all, fields)), all);
  TensorIds listed;
  for (const TensorId id : inputs_of(with(op, all, fields))) listed.push_back(id);
  EXPECT_EQ(listed, all);
  for (size_t absent = 0; absent < all.size(); ++absent) {
    TensorIds some = all, expected = all;
    some[absent] = kNoTensor;
    expected.erase(expected.begin() + static_cast<ptrdiff_t>(absent));
    EXPECT_EQ(visited(with(op, some, fields)), expected);
  }
  Op replaced = with(op, all, fields);
  for_each_input(replaced, [](TensorId& id) { id += 100; });
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(std::get<AnyOp>(replaced).*fields[i], all[i] + 100);
  EXPECT_EQ(std::tuple_size_v<decltype(AnyOp::inputs(op))>, fields.size());
}

TEST(Ops, VisitTheirInputsInTheOrderOfTheFields) {
  check<EmbedOp>({&EmbedOp::ids, &EmbedOp::table});
  check<NormOp>({&NormOp::x, &NormOp::weight, &NormOp::bias});
  check<LinearOp>({&LinearOp::x, &LinearOp::weight, &LinearOp::bias, &LinearOp::residual});
  check<HeadLinearOp>({&HeadLinearOp::x, &HeadLinearOp::weight});
  check<RopeOp>({&RopeOp::x, &RopeOp::positions, &RopeOp::freq_factors});
  check<KvWriteOp>({&KvWriteOp::k, &KvWriteOp::v, &KvWriteOp::slots});
  check<AttentionOp>({&AttentionOp::q, &AttentionOp::positions, &AttentionOp::sequences,
                      &AttentionOp::block_table, &AttentionOp::sinks, &AttentionOp::hot_from});
  check<LatentAttentionOp>({&LatentAttentionOp::q, &LatentAttentionOp::k_up, &LatentAttentionOp::v_up,
                            &LatentAttentionOp::positions, &LatentAttentionOp::sequences,
                            &LatentAttentionOp::block_table});
  check<GluOp>({&GluOp::x, &GluOp::gate, &GluOp::up, &GluOp::gate_bias, &GluOp::up_bias});
  check<MoeRouteOp>({&MoeRouteOp::logits, &MoeRouteOp::selection_bias, &MoeRouteOp::expert_scale});
  check<CachedRouteOp>({&CachedRouteOp::route, &CachedRouteOp::cached, &CachedRouteOp::x});
  check<MoeFfnOp>({&MoeFfnOp::x, &MoeFfnOp::route, &MoeFfnOp::gate, &MoeFfnOp::up, &MoeFfnOp::down,
                   &MoeFfnOp::residual, &MoeFfnOp::gate_bias, &MoeFfnOp::up_bias, &MoeFfnOp::down_bias,
                   &MoeFfnOp::gate_factors});
  check<AddOp>({&AddOp::a, &AddOp::b, &AddOp::gate});
  check<ScaleOp>({&ScaleOp::x});
  check<SoftcapOp>({&SoftcapOp::x});
  check<GatherRowsOp>({&GatherRowsOp::x, &GatherRowsOp::outputs});
  check<MergeOp>({&MergeOp::a, &MergeOp::b});
  check<JoinOp>({&JoinOp::a, &JoinOp::b, &JoinOp::residual});
  check<ColumnsOp>({&ColumnsOp::x});
  check<GateOp>({&GateOp::x, &GateOp::gate});
  check<CausalConvOp>({&CausalConvOp::x, &CausalConvOp::weight, &CausalConvOp::bias, &CausalConvOp::positions,
                       &CausalConvOp::sequences, &CausalConvOp::states});
  check<SsmScanOp>({&SsmScanOp::xbc, &SsmScanOp::dt, &SsmScanOp::decay, &SsmScanOp::dt_bias, &SsmScanOp::skip,
                    &SsmScanOp::positions, &SsmScanOp::sequences, &SsmScanOp::states});
  check<DeltaRuleOp>({&DeltaRuleOp::qkv, &DeltaRuleOp::beta, &DeltaRuleOp::alpha, &DeltaRuleOp::decay,
                      &DeltaRuleOp::dt_bias, &DeltaRuleOp::positions, &DeltaRuleOp::sequences,
                      &DeltaRuleOp::states});
  check<HadamardOp>({&HadamardOp::x});
  check<TopKOp>({&TopKOp::x});
  check<CollectiveOp>({&CollectiveOp::x});
  static_assert(std::variant_size_v<Op> == 26, "a new op is checked here too");
}

TEST(Ops, AreNamed) {
  EXPECT_EQ(op_name(KvWriteOp{}), "kv_write");
  EXPECT_EQ(op_name(GatherRowsOp{}), "gather_rows");
}

}  // namespace
}  // namespace tandem
