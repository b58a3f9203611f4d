// Recurrent layers divided over simulated devices: each device has the state of its heads or channels alone, and everything
// that keeps, cuts back and hands on states works as with one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/session_file.h"
#include "exec/recurrent_cuts.h"
#include "plan/footprint.h"
#include "support/batch_rig.h"
#include "support/recurrent_model.h"
#include "support/tensor_rig.h"

namespace tandem {
namespace {

using test::RecurrentKind;
using testing::HasSubstr;

class TensorRecurrent : public test::TensorRig, public testing::WithParamInterface<RecurrentKind> {
 protected:
  void SetUp() override { model_ = load_kind(DType::F32); }

  std::unique_ptr<Model> load_kind(DType dtype) {
    const std::string path = directory_.path(std::string(dtype_name(dtype)) + ".gguf");
    test::recurrent_model(GetParam(), dtype).write(path);
    return Model::load(path);
  }

  static std::vector<double> even(size_t n) { return std::vector<double>(n, 1); }

  std::vector<float> expected(const Model& model) { return cpu_logits(model, options({}, DType::F32)); }

  void expect_same(const Model& model, const OffloadOptions& flags, size_t n_gpus, float tolerance = 1e-4f) {
    SCOPED_TRACE(std::to_string(n_gpus) + " devices");
    test::SimMachine machine(*host_, n_gpus);
    Session session(model, machine.devices(), options(flags, DType::F32));
    EXPECT_LE(apart(logits(session), expected(model)), tolerance);
    expect_as_planned(session, machine);
  }

  std::unique_ptr<Model> model_;
};

TEST_P(TensorRecurrent, LogitsAreThoseOfOneDevice) {
  for (const size_t n : {2, 3, 4, 8}) expect_same(*model_, divided(even(n)), n);
}

TEST_P(TensorRecurrent, SharesMayDiffer) {
  for (const std::vector<double>& shares :
       {std::vector<double>{3, 1}, {1, 5}, {1, 0, 2}, {0.2, 0.3, 0.5}, {1, 100}, {5, 1, 1, 1}})
    expect_same(*model_, divided(shares), shares.size());
}

// The floats of a state slot that each device has.
std::vector<int64_t> state_floats(const Session& session, size_t layer, KvHalf half, size_t n_gpus) {
  std::vector<int64_t> list(n_gpus, 0);
  const KvHome& home = session.placement().placement.layers[layer].kv;
  for (const HeadPools::Pool& pool : divided_pools(home, session.kv_config().layers[layer]).pools)
    list[pool.device.index() - 1] = n_columns(half == KvHalf::keys ? pool.conv : pool.recurrence);
  return list;
}

// Nobody has the state of another's heads; b and c of a lone group, which all heads need, each device has.
TEST_P(TensorRecurrent, NoDeviceHasAWholeState) {
  const bool copies = GetParam() == RecurrentKind::mamba_one_group;
  for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {1, 1, 1, 1}, {3, 1}, {2, 1, 1}}) {
    SCOPED_TRACE(shares.size());
    const size_t n = shares.size();
    double total = 0;
    for (const double share : shares) total += share;
    test::SimMachine machine(*host_, n);
    Session session(*model_, machine.devices(), options(divided(shares)));
    int n_recurrent = 0;
    for (size_t layer = 0; layer < session.kv_config().layers.size(); ++layer) {
      const KvShape& shape = session.kv_config().layers[layer];
      if (!shape.is_recurrent()) continue;
      ++n_recurrent;
      const std::vector<int64_t> conv = state_floats(session, layer, KvHalf::keys, n);
      const std::vector<int64_t> recurrence = state_floats(session, layer, KvHalf::values, n);
      const int64_t n_copied = copies ? (n - 1) * 3 * 2 * 16 : 0;  // 3 tokens of b and c with 16 columns
      EXPECT_EQ(std::accumulate(conv.begin(), conv.end(), int64_t{0}), shape.n_conv + n_copied);
      EXPECT_EQ(std::accumulate(recurrence.begin(), recurrence.end(), int64_t{0}), shape.n_recurrence);
      for (size_t i = 0; i < n; ++i) {
        EXPECT_EQ(static_cast<double>(recurrence[i]),
                  static_cast<double>(shape.n_recurrence) * shares[i] / total);
        if (copies) continue;
        EXPECT_EQ(static_cast<double>(conv[i]), static_cast<double>(shape.n_conv) * shares[i] / total);
      }
    }
    EXPECT_EQ(n_recurrent, 3);
  }
}

// What devices have of the weights is that of one device, but for norms, routers, and b and c of a lone group. Neither
// projection of a recurrent layer is on two devices.
TEST_P(TensorRecurrent, WeightsAreDivided) {
  test::SimMachine one(*host_, 1), four(*host_, 4);
  const auto weights = [&](test::SimMachine& machine, const OffloadOptions& flags) {
    Session session(*model_, machine.devices(), options(flags));
    size_t sum = 0;
    for (size_t d = 1; d < machine.devices().size(); ++d) sum += session.placement().bytes.devices[d].weights;
    return sum;
  };
  OffloadOptions flags;
  flags.n_gpu_layers = 99;
  const size_t whole = weights(one, flags), parts = weights(four, divided(even(4)));
  EXPECT_GE(parts, whole);
  const size_t most = GetParam() == RecurrentKind::mamba_one_group ? whole / 4 : whole / 12;
  EXPECT_LE(parts - whole, most);
}

// One all-reduce for the layer's output and one for its feed-forward part; a norm over all heads gathers them before.
TEST_P(TensorRecurrent, BytesOverLinksFollowTheFormula) {
  constexpr size_t kModelLayers = 4, kEmbd = 64, kInner = 128;
  for (const size_t n : {2, 4}) {
    test::SimMachine machine(*host_, n);
    Session session(*model_, machine.devices(), options(divided(even(n))));
    session.append(prompt(5));
    const BusBytes& bus = session.placement().bytes.per_token;
    const size_t n_gathered = GetParam() == RecurrentKind::mamba_one_group ? kModelLayers - 1 : 0;
    EXPECT_EQ(bus.n_all_reduce, 2 * kModelLayers);
    EXPECT_EQ(bus.n_all_gather, 1 + n_gathered);
    size_t sum = 0;
    for (size_t d = 1; d <= n; ++d) sum += bus.collectives[d];
    const size_t n_vocab = 300;
    EXPECT_EQ(sum, sizeof(float) *
                       (2 * kModelLayers * 2 * kEmbd * n + 2 * n_vocab + n_gathered * kInner * (n + 1)));
    EXPECT_EQ(bus.activations, n * kEmbd * sizeof(float));  // the embedding
    expect_as_planned(session, machine);
  }
}

// Heads that are no whole blocks of the product behind are gathered, also out of order.
TEST_P(TensorRecurrent, QuantizedMatricesAreCutAtBlocks) {
  for (const DType dtype : {DType::Q8_0, DType::Q4_0}) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto model = load_kind(dtype);
    for (const size_t n : {2, 3, 8}) expect_same(*model, divided(even(n)), n, 3e-2f);
  }
}

TEST_P(TensorRecurrent, StatesInHostMemory) {
  OffloadOptions flags = divided(even(3));
  flags.kv_on_host = Toggle::on;
  expect_same(*model_, flags, 3);
}

TEST_P(TensorRecurrent, SomeLayersOnTheHost) {
  OffloadOptions flags = divided({2, 1});
  for (const int64_t n : {1, 2, 3}) {
    flags.n_gpu_layers = n;
    expect_same(*model_, flags, 2);
  }
}

TEST_P(TensorRecurrent, StreamedLayers) {
  OffloadOptions flags = divided(even(3));
  flags.n_gpu_layers = 1;
  flags.stream = Toggle::on;
  test::SimMachine machine(*host_, 3);
  Session session(*model_, machine.devices(), options(flags, DType::F32));
  EXPECT_LE(apart(logits(session), expected(*model_)), 1e-4f);
  for (size_t d = 1; d < 4; ++d)
    EXPECT_EQ(machine.gpu(d - 1).used_bytes(), session.placement().bytes.devices[d].total());
}

TEST_P(TensorRecurrent, TheHostMayTakePart) {
  test::SimMachine machine(*host_, 2);
  EngineOptions o = options({}, DType::F32);
  o.placement = place(model_->architecture(), model_->weights(), machine.devices(), divided({1, 1}), 99);
  o.placement.parallel->devices.push_back(DeviceId::host());
  o.placement.parallel->shares.push_back(1);
  divide_caches(o.placement, session_graphs(model_->architecture(), o.context).decode);
  Session session(*model_, machine.devices(), o);
  EXPECT_LE(apart(logits(session), expected(*model_)), 1e-4f);
  expect_as_planned(session, machine);
}

std::vector<float> appended(Session& session, std::span<const int32_t> ids) {
  const std::span<const float> row = session.append(ids);
  return {row.begin(), row.end()};
}

TEST_P(TensorRecurrent, TextsAreCutBackToCheckpoints) {
  test::SimMachine machine(*host_, 3);
  EngineOptions o = options(divided({2, 1, 1}), DType::F32);
  o.context.n_ctx = 128;
  Session session(*model_, machine.devices(), o);
  o.offload = {};
  Session alone(*model_, {host_.get()}, o);
  const std::vector<int32_t> ids = prompt(100);
  const std::vector<float> end = appended(alone, ids);
  EXPECT_LE(apart(appended(session, ids), end), 1e-4f);
  for (const int64_t n : {71, 33, 32, 7}) {
    session.truncate(n);
    EXPECT_EQ(session.n_cached(), n / 32 * 32) << n;
    EXPECT_LE(apart(appended(session, std::span(ids).subspan(static_cast<size_t>(n))), end), 1e-4f) << n;
  }
}

// A saved state does not tell where it was; neither does a kept one.
TEST_P(TensorRecurrent, SavedSessionsLoadAnywhere) {
  test::SimMachine machine(*host_, 3);
  EngineOptions parted_options = options(divided({1, 1, 1}), DType::F32),
                other_options = options(divided({1, 2, 1}), DType::F32);
  EngineOptions alone_options = options({}, DType::F32);
  for (EngineOptions* o : {&parted_options, &other_options, &alone_options}) o->context.n_ctx = 128;
  const auto path = [&](const char* name) { return directory_.path(name); };
  Session parted(*model_, machine.devices(), parted_options), alone(*model_, {host_.get()}, alone_options);
  const std::vector<int32_t> ids = prompt(70), next{5, 280};
  parted.append(ids);
  alone.append(ids);
  save_session(parted, path("parted"));
  save_session(alone, path("alone"));
  Session from_alone(*model_, machine.devices(), other_options),
      from_parted(*model_, {host_.get()}, alone_options);
  SessionFile(path("alone"), from_alone).restore(from_alone, ids.size());
  SessionFile(path("parted"), from_parted).restore(from_parted, ids.size());
  const std::vector<float> wanted = appended(alone, next);
  EXPECT_LE(apart(appended(from_alone, next), wanted), 1e-4f);
  EXPECT_LE(apart(appended(from_parted, next), wanted), 1e-4f);

  BlockStore store(path("store"));
  parted.truncate(70);
  parted.keep_in(store);
  parted.keep();
  store.flush();
  for (Session* session : {&from_alone, &from_parted}) {
    session->truncate(0);
    session->keep_in(store);
    EXPECT_EQ(session->load_kept(ids), 64);
    session->append(std::span(ids).subspan(64));
    EXPECT_LE(apart(appended(*session, next), wanted), 1e-4f);
  }
}

TEST_P(TensorRecurrent, FailuresAreErrors) {
  expect_failures_are_errors(
      [&](const std::vector<Device*>& devices) {
        Session session(*model_, devices, options(divided({1, 1})));
        logits(session);
      },
      11, 5);
}

TEST_P(TensorRecurrent, IsExplained) {
  test::SimMachine machine(*host_, 2);
  std::string text;
  const Session session(*model_, machine.devices(), options(divided({3, 1})),
                        [&](const std::string& t) { text = t; });
  const bool are_channels = GetParam() == RecurrentKind::short_conv;
  EXPECT_THAT(text, HasSubstr(are_channels ? "SIM0 48 channels " : "SIM0 12 heads "));
  EXPECT_THAT(text, HasSubstr(are_channels ? " + SIM1 16 channels " : " + SIM1 4 heads "));
}

INSTANTIATE_TEST_SUITE_P(All, TensorRecurrent, testing::ValuesIn(test::kRecurrentKinds),
                         [](const auto& param_info) { return test::name_of(param_info.param); });

class TensorRecurrentBatch : public test::BatchRig, public testing::WithParamInterface<RecurrentKind> {};

// Texts with beginnings in common go on from the states of others.
TEST_P(TensorRecurrentBatch, TextsShareBeginnings) {
  const std::string path = directory_.path("model.gguf");
  test::recurrent_model(GetParam()).write(path);
  const auto model = Model::load(path);
  const std::vector<BatchRequest> list = requests(9, 70);
  const std::vector<std::string> wanted = alone(*model, list);
  test::SimMachine machine(*host_, 3);
  EngineOptions o = options(3);
  o.offload.n_gpu_layers = 99;
  o.offload.split_mode = SplitMode::tensor;
  o.offload.tensor_split = {1, 2, 1};
  Runtime runtime(*model, machine.devices(), o);
  Batcher batcher(runtime);
  EXPECT_EQ(together(batcher, list), wanted);
  EXPECT_GT(batcher.stats().n_reused, 0);
}

INSTANTIATE_TEST_SUITE_P(All, TensorRecurrentBatch, testing::ValuesIn(test::kRecurrentKinds),
                         [](const auto& param_info) { return test::name_of(param_info.param); });

// Cuts of columns side by side.
TEST(Cuts, RangesAreCutEachForItself) {
  const Cuts plain{4, {0, 1, 4}};
  EXPECT_EQ(plain.runs_of(0, 12), (ColumnRuns{{0, 3}}));
  EXPECT_EQ(plain.runs_of(1, 12), (ColumnRuns{{3, 9}}));
  const Cuts three = plain.with({{4, false}, {4, false}, {8, false}});
  EXPECT_EQ(three.runs_of(0, 16), (ColumnRuns{{0, 1}, {4, 1}, {8, 2}}));
  EXPECT_EQ(three.runs_of(1, 32), (ColumnRuns{{2, 6}, {10, 6}, {20, 12}}));
  EXPECT_EQ(three.n_of(1, 32), 24);
  EXPECT_TRUE(three.divides(16));
  EXPECT_FALSE(three.divides(8));  // two columns of the first range
  EXPECT_EQ(three, plain.with({{1, false}, {1, false}, {2, false}}));
  EXPECT_EQ(plain, plain.with({{7, false}}));
  const Cuts copied = Cuts{4, {0, 0, 4}}.with({{4, false}, {3, true}});
  EXPECT_EQ(copied.runs_of(0, 7), ColumnRuns{});
  EXPECT_EQ(copied.runs_of(1, 7), (ColumnRuns{{0, 7}}));
}

}  // namespace
}  // namespace tandem
