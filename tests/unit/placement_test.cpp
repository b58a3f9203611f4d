// Homes and placements: what cannot be written, who holds and who computes in each home and kind of step, and
// which device a node of a graph runs on.
#include "exec/placement.h"

#include <gtest/gtest.h>

#include "graph/builder.h"

namespace tandem {
namespace {

constexpr DeviceId kHost = DeviceId::host();
constexpr GpuId kGpu(0), kOther(1);
constexpr StepKind kKinds[] = {StepKind::prefill, StepKind::decode};

// Whether a T can be written T{args...}.
template <class T, class... Args>
concept CanBe = requires(Args... args) {
  T{args...};
};

// No integer is a device, and no device means "none".
static_assert(!std::is_default_constructible_v<DeviceId> && !std::is_default_constructible_v<GpuId>);
static_assert(!std::is_convertible_v<int, DeviceId> && !std::is_convertible_v<int, GpuId>);
static_assert(std::is_convertible_v<GpuId, DeviceId> && !std::is_convertible_v<DeviceId, GpuId>);
// Nothing is resident on, streamed to, prefetched to or split with the host.
static_assert(CanBe<Resident, GpuId> && !CanBe<Resident, DeviceId> && !CanBe<Resident>);
static_assert(CanBe<Streamed, GpuId> && !CanBe<Streamed, DeviceId> && !CanBe<Streamed>);
static_assert(CanBe<RowsShared, GpuId, double> && !CanBe<RowsShared, DeviceId, double>);
static_assert(CanBe<PrefetchedKv, GpuId> && !CanBe<PrefetchedKv, DeviceId>);
static_assert(CanBe<SplitKv, GpuId, int64_t, int64_t> && !CanBe<SplitKv, DeviceId, int64_t, int64_t>);
static_assert(CanBe<ResidentKv, GpuId> && CanBe<ResidentKv, DeviceId>);
// Rows of what is on disk are not divided, and what a GPU holds is not streamed.
static_assert(CanBe<InMemory, RowsShared, Streamed> && !CanBe<OnDisk, RowsShared, Streamed>);
static_assert(CanBe<OnDisk, Streamed, HostComputes> && !CanBe<Resident, GpuId, Streamed>);

TEST(Homes, DevicesByNumber) {
  EXPECT_TRUE(kHost.is_host());
  EXPECT_EQ(kHost.index(), 0u);
  EXPECT_EQ(kHost.gpu(), std::nullopt);
  EXPECT_EQ(DeviceId(kOther).index(), 2u);
  EXPECT_EQ(DeviceId(kOther).gpu(), kOther);
  EXPECT_EQ(DeviceId::at(1), kGpu);
  EXPECT_EQ(DeviceId::at(0), kHost);
  EXPECT_LT(kHost, DeviceId(kGpu));
}

TEST(Homes, AStepWithSeveralTokensOfASequenceIsPrefill) {
  EXPECT_EQ(step_kind({.max_tokens = 1}), StepKind::decode);
  EXPECT_EQ(step_kind({.max_tokens = 4, .max_sequences = 4}), StepKind::decode);
  EXPECT_EQ(step_kind({.max_tokens = 5, .max_sequences = 4}), StepKind::prefill);
}

TEST(Homes, WhoHoldsAndWhoComputes) {
  struct Case {
    WeightHome home;
    DeviceId holds, prefill, decode;
    double prefill_share, decode_share;
    bool uses_gpu;
  };
  const Case cases[] = {
      {Resident{kOther}, kOther, kOther, kOther, 1, 1, true},
      {InMemory{}, kHost, kHost, kHost, 1, 1, false},
      {InMemory{Streamed{kGpu}, HostComputes{}}, kHost, kGpu, kHost, 1, 1, true},
      {InMemory{HostComputes{}, Streamed{kGpu}}, kHost, kHost, kGpu, 1, 1, true},
      {InMemory{RowsShared{kGpu, 0.75}, RowsShared{kOther, 0.25}}, kHost, kGpu, kOther, 0.75, 0.25, true},
      {OnDisk{}, kHost, kHost, kHost, 1, 1, false},
      {OnDisk{Streamed{kOther}, HostComputes{}}, kHost, kOther, kHost, 1, 1, true},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    const Case& c = cases[i];
    EXPECT_EQ(holder(c.home), c.holds);
    EXPECT_EQ(computes_on(c.home, StepKind::prefill), c.prefill);
    EXPECT_EQ(computes_on(c.home, StepKind::decode), c.decode);
    EXPECT_EQ(row_share(c.home, StepKind::prefill), c.prefill_share);
    EXPECT_EQ(row_share(c.home, StepKind::decode), c.decode_share);
    EXPECT_EQ(uses_gpu(c.home), c.uses_gpu);
    for (const StepKind kind : kKinds) {
      const bool streams = c.holds.is_host() && !computes_on(c.home, kind).is_host();
      EXPECT_EQ(streamed_to(c.home, kind), streams ? computes_on(c.home, kind).gpu() : std::nullopt);
    }
  }
}

TEST(Homes, AllRowsAreStreamedAndNotShared) {
  EXPECT_EQ(use_on(kGpu, 1), MemoryUse(Streamed{kGpu}));
  EXPECT_EQ(use_on(kGpu, 0.5), MemoryUse(RowsShared{kGpu, 0.5}));
}

TEST(Homes, OnDiskNoRowsAreShared) {
  EXPECT_EQ(moved_to_disk({RowsShared{kGpu, 0.5}, HostComputes{}}), (OnDisk{Streamed{kGpu}, HostComputes{}}));
  EXPECT_EQ(moved_to_disk({HostComputes{}, Streamed{kOther}}), (OnDisk{HostComputes{}, Streamed{kOther}}));
}

TEST(Homes, WhereTheCacheIsAndWhereAttentionRuns) {
  EXPECT_EQ(holder(KvHome(ResidentKv{kGpu})), kGpu);
  for (const StepKind kind : {StepKind::prefill, StepKind::decode}) {
    EXPECT_EQ(attends_on(ResidentKv{kGpu}, kind), kGpu);
    EXPECT_EQ(attends_on(ResidentKv{kHost}, kind), kHost);
    EXPECT_EQ(attends_on(PrefetchedKv{kGpu}, kind), kGpu);
    EXPECT_EQ(attends_on(SplitKv{kOther, 8, 2}, kind), kOther);
  }
  EXPECT_EQ(attends_on(PrefetchedKv{kGpu, true}, StepKind::prefill), kGpu);
  EXPECT_EQ(attends_on(PrefetchedKv{kGpu, true}, StepKind::decode), kHost);
  EXPECT_EQ(holder(KvHome(PrefetchedKv{kGpu})), kHost);
  EXPECT_EQ(holder(KvHome(SplitKv{kOther, 8, 2})), kHost);
  EXPECT_FALSE(uses_gpu(KvHome(ResidentKv{})));
  for (const KvHome& home :
       {KvHome(ResidentKv{kGpu}), KvHome(PrefetchedKv{kGpu}), KvHome(PrefetchedKv{kGpu, true}),
        KvHome(SplitKv{kGpu, 8, 2})}) {
    EXPECT_TRUE(uses_gpu(home));
  }
}

// A layer with all that is placed, before and after it the input and the output.
class PlacedNodes : public testing::Test {
 protected:
  static constexpr int64_t kCols = 32;
  enum Which : size_t { embed, norm, linear, kv_write, attention, route, experts, gather, head };

  Graph graph(StepKind kind) {
    GraphBuilder b({.max_tokens = kind == StepKind::prefill ? 8 : 1, .max_outputs = 1});
    TensorId x = b.embed(&table_);
    b.set_layer(0);
    x = b.norm(x, {.group = kCols}, &vector_);
    const TensorId q = b.linear(x, &matrix_);
    b.kv_write(q, q);
    x = b.attention(q, {.n_head = 1, .n_head_kv = 1, .head_dim_k = kCols, .head_dim_v = kCols});
    const TensorId chosen = b.moe_route(x, {.n_expert = kCols, .n_used = 1});
    x = b.moe_ffn(x, chosen, {.n_expert = 4, .n_used = 1}, &experts_, &experts_, &experts_);
    b.set_layer(1);
    return b.finish(b.linear(b.gather_outputs(x), &table_));
  }

  DeviceId device(const Placement& p, Which which, StepKind kind) {
    const Graph g = graph(kind);
    return p.runs_on(g, g.nodes[which]);
  }
  bool streams(const Placement& p, Which which, const Weight& weight, StepKind kind) {
    const Graph g = graph(kind);
    return p.streams(g, g.nodes[which], weight);
  }

  Weight table_{.name = "table", .n_rows = kCols, .n_cols = kCols};
  Weight vector_{.name = "norm", .n_rows = 1, .n_cols = kCols, .layer = 0};
  Weight matrix_{.name = "matrix", .n_rows = kCols, .n_cols = kCols, .layer = 0, .in_file = true};
  Weight experts_{.name = "ffn_up_exps.weight",
                  .n_mats = 4,
                  .n_rows = kCols,
                  .n_cols = kCols,
                  .layer = 0,
                  .in_file = true};
};

TEST_F(PlacedNodes, RunByTheHomeOfWhatTheyRead) {
  Placement p = Placement::host_only(1);
  p.input = kOther;
  p.layers[0] = {Resident{kGpu}, InMemory{Streamed{kOther}, HostComputes{}}, PrefetchedKv{kOther}};
  for (const StepKind kind : kKinds) {
    EXPECT_EQ(device(p, embed, kind), kOther);
    for (const Which which : {norm, linear, route}) EXPECT_EQ(device(p, which, kind), kGpu) << which;
    for (const Which which : {kv_write, attention}) EXPECT_EQ(device(p, which, kind), kOther) << which;
    for (const Which which : {gather, head}) EXPECT_EQ(device(p, which, kind), kHost) << which;
  }
  EXPECT_EQ(device(p, experts, StepKind::prefill), kOther);
  EXPECT_EQ(device(p, experts, StepKind::decode), kHost);
  p.output = kGpu;
  EXPECT_EQ(device(p, head, StepKind::decode), kGpu);
}

TEST_F(PlacedNodes, RunWhereTheyOrAnOverrideSay) {
  Placement p = Placement::host_only(1);
  p.layers[0] = {InMemory{Streamed{kGpu}, Streamed{kGpu}}, Resident{kGpu}, ResidentKv{kGpu}};
  p.overrides.emplace(&matrix_, kHost);
  EXPECT_EQ(device(p, linear, StepKind::prefill), kHost);
  EXPECT_FALSE(streams(p, linear, matrix_, StepKind::prefill));
  EXPECT_EQ(device(p, norm, StepKind::prefill), kGpu);
  Graph g = graph(StepKind::decode);
  g.nodes[linear].device = kOther;
  EXPECT_EQ(p.runs_on(g, g.nodes[linear]), kOther);
}

TEST_F(PlacedNodes, StreamTheMatricesThatTheHostHolds) {
  Placement p = Placement::host_only(1);
  p.layers[0].weights = InMemory{Streamed{kGpu}, HostComputes{}};
  p.layers[0].experts = Resident{kGpu};
  EXPECT_TRUE(streams(p, linear, matrix_, StepKind::prefill));
  EXPECT_FALSE(streams(p, linear, matrix_, StepKind::decode));
  EXPECT_FALSE(streams(p, norm, vector_, StepKind::prefill));
  EXPECT_FALSE(streams(p, experts, experts_, StepKind::prefill));
  EXPECT_FALSE(streams(p, head, table_, StepKind::prefill));
  EXPECT_FALSE(p.on_disk(matrix_));
}

// From disk the host too reads them by way of a slot.
TEST_F(PlacedNodes, ReadFromDiskWhatIsThere) {
  Placement p = Placement::host_only(1);
  EXPECT_FALSE(p.reads_disk());
  p.layers[0].weights = OnDisk{};
  EXPECT_TRUE(p.reads_disk());
  EXPECT_TRUE(p.on_disk(matrix_));
  EXPECT_FALSE(p.on_disk(vector_));
  EXPECT_FALSE(p.on_disk(table_));
  for (const StepKind kind : kKinds) {
    EXPECT_EQ(device(p, linear, kind), kHost);
    EXPECT_TRUE(streams(p, linear, matrix_, kind));
  }
  matrix_.in_file = false;
  EXPECT_FALSE(p.on_disk(matrix_));
}

TEST_F(PlacedNodes, ALayerWithAnyPartOfItOnTheHostIsNotResident) {
  LayerPlacement layer{Resident{kGpu}, Resident{kGpu}, ResidentKv{}};
  EXPECT_TRUE(layer.is_resident());
  layer.experts = InMemory{RowsShared{kGpu, 0.5}, HostComputes{}};
  EXPECT_FALSE(layer.is_resident());
  EXPECT_TRUE(layer.divides_rows(StepKind::prefill));
  EXPECT_FALSE(layer.divides_rows(StepKind::decode));
  EXPECT_FALSE(layer.reads_disk());
}

TEST_F(PlacedNodes, SplitCachesSayHow) {
  Placement p = Placement::host_only(2);
  EXPECT_EQ(p.split(), nullptr);
  p.layers[1].kv = SplitKv{kGpu, 100, 5};
  ASSERT_TRUE(p.splits_caches());
  EXPECT_EQ(*p.split(), (SplitKv{kGpu, 100, 5}));
}

}  // namespace
}  // namespace tandem
