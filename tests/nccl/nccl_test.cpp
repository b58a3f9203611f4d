// Sums by NCCL, with a library that stands for it: how it is loaded, what is called in which order, and that whatever fails or
// hangs in it is reported in one sentence. Devices are the CPU's kernels under the names of GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "exec/tensor_cuts.h"
#include "nccl.h"
#include "nccl/fake_nccl.h"
#include "plan/offload.h"
#include "plan/peer_rates.h"
#include "plan/session_plan.h"
#include "support/forwarding_device.h"
#include "support/recurrent_model.h"
#include "support/tensor_rig.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- Loading ----

fs::path build_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path();
}

class NcclLibrary : public testing::Test {
 protected:
  void SetUp() override { fs::copy_file(build_folder() / "nccl_probe", directory_.path("nccl_probe")); }

  void bring(const std::string& file, const std::string& from = ".") {
    fs::copy_file(build_folder() / from / file, directory_.path(file));
  }

  // What the probe says beside these libraries.
  std::string said() {
    FILE* pipe = popen(directory_.path("nccl_probe").c_str(), "r");
    std::string text;
    for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    EXPECT_EQ(pclose(pipe), 0);
    return text;
  }
  static std::string io() { return std::to_string(static_cast<int>(ErrorCode::io)) + " "; }

  test::TempDir directory_;
};

TEST_F(NcclLibrary, IsLoaded) {
  bring("libtandem_nccl.so");
  bring("libfake_nccl.so");
  EXPECT_EQ(said(), "loaded\n");
}

TEST_F(NcclLibrary, BuiltWithout) {
  EXPECT_THAT(said(),
              HasSubstr(io() + "this tandem was built without NCCL: libtandem_nccl.so is not beside"));
}

TEST_F(NcclLibrary, NcclIsMissing) {
  bring("libtandem_nccl.so");
  EXPECT_THAT(said(),
              HasSubstr(io() + "the NCCL library that tandem was built with is missing: libfake_nccl.so"));
}

TEST_F(NcclLibrary, AFunctionIsMissing) {
  bring("libtandem_nccl.so");
  bring("libfake_nccl.so", "lacking");
  EXPECT_THAT(said(), testing::AllOf(HasSubstr(io()), HasSubstr("undefined symbol: ncclAllReduce")));
}

TEST_F(NcclLibrary, OfAnotherVersion) {
  for (const char* from : {"other", "none"}) {
    fs::remove(directory_.path("libtandem_nccl.so"));
    bring("libtandem_nccl.so", from);
    EXPECT_THAT(said(), HasSubstr("libtandem_nccl.so belongs to another version of tandem")) << from;
  }
}

TEST_F(NcclLibrary, IsNoLibrary) {
  std::ofstream(directory_.path("libtandem_nccl.so")) << "text";
  EXPECT_THAT(said(), HasSubstr(io()));
}

// ---- Sums ----

// A device whose work is done at once, unless its stream is stuck. What is beside its runs is done when they wait for it.
class StreamDevice final : public test::ForwardingDevice {
 public:
  explicit StreamDevice(int number)
      : ForwardingDevice(cpu::make_cpu_device({.n_threads = 1})),
        number_(number),
        info_{"CUDA" + std::to_string(number), "a GPU", "CUDA", false} {
    side_stream_.is_side = true;
  }

  const DeviceInfo& info() const override { return info_; }
  MemoryInfo memory_info() const override { return {size_t{1} << 30, size_t{1} << 30}; }
  size_t weight_bytes(const Weight& weight) const override { return weight.n_bytes(); }
  void upload(DevicePtr to, const Weight& weight) override { copy_in(to, weight.data, weight.n_bytes()); }
  bool has_reached(Event) override { return !is_stuck(); }
  void wait(Event) override {
    if (is_stuck()) ADD_FAILURE() << "a deadlock: " << info_.name << " waits for a sum that never ends";
  }
  std::optional<NativeQueue> native_queue() override {
    return NativeQueue{NativeQueue::Api::cuda, number_, &stream_};
  }
  SideQueue* side_queue() override { return &side_; }
  size_t n_late() const { return side_stream_.late.size(); }
  DevicePtr alloc(size_t n_bytes) override {
    ++n_allocations_;
    return ForwardingDevice::alloc(n_bytes);
  }
  void free(DevicePtr address) override {
    --n_allocations_;
    ForwardingDevice::free(address);
  }
  int64_t n_allocations() const { return n_allocations_; }

 private:
  class Side final : public SideQueue {
   public:
    explicit Side(StreamDevice& device) : device_(device) {}
    void copy_in(DevicePtr to, const void* from, size_t n_bytes) override {
      device_.side_stream_.catch_up();
      device_.copy_in(to, from, n_bytes);
    }
    void copy_out(void* to, DevicePtr from, size_t n_bytes) override {
      device_.side_stream_.catch_up();
      device_.copy_out(to, from, n_bytes);
    }
    Event record() override { return device_.side_stream_.n_given(); }
    void wait(Event event) override { device_.side_stream_.catch_up(event); }
    bool has_reached(Event) override { return !device_.side_stream_.is_stuck && !device_.is_stuck(); }
    std::optional<NativeQueue> native_queue() override {
      return NativeQueue{NativeQueue::Api::cuda, device_.number_, &device_.side_stream_};
    }
    void follow() override {}
    void lead(Event event) override {
      device_.side_stream_.catch_up(event);
      device_.is_behind_side_ = true;
    }

   private:
    StreamDevice& device_;
  };

  bool is_stuck() const { return stream_.is_stuck || (is_behind_side_ && side_stream_.is_stuck); }

  int number_;
  DeviceInfo info_;
  FakeStream stream_, side_stream_;
  bool is_behind_side_ = false;
  Side side_{*this};
  int64_t n_allocations_ = 0;
};

class NcclSums : public test::TensorRig {
 protected:
  static constexpr size_t kRows = 3, kCols = 50;

  void SetUp() override {
    reset_fake_nccl();
    for (int i = 0; i < 3; ++i) devices_.push_back(std::make_unique<StreamDevice>(i));
  }
  void TearDown() override {
    EXPECT_THAT(fake_nccl().faults, IsEmpty());
    EXPECT_EQ(fake_nccl().n_open, 0) << "communicators stay open";
  }

  std::vector<Device*> gpus() const {
    std::vector<Device*> list;
    for (const auto& device : devices_) list.push_back(device.get());
    return list;
  }
  std::vector<Device*> machine() const {
    std::vector<Device*> list = gpus();
    list.insert(list.begin(), host_.get());
    return list;
  }

  struct Summands {
    std::vector<CollectivePart> parts;
    std::vector<float> sum;
  };
  Summands summands() {
    Summands s;
    s.sum.assign(kRows * kCols, 0.0f);
    for (size_t d = 0; d < devices_.size(); ++d) {
      std::vector<float>& own = memory_.emplace_back(kRows * kCols);
      for (size_t i = 0; i < own.size(); ++i) s.sum[i] += own[i] = static_cast<float>((i + 5 * d) % 17);
      const auto at = reinterpret_cast<DevicePtr>(own.data());
      s.parts.push_back({devices_[d].get(), at, at, kCols});
    }
    return s;
  }
  static void expect_sums(const Summands& s) {
    for (const CollectivePart& part : s.parts) {
      const auto* got = reinterpret_cast<const float*>(part.out);
      EXPECT_EQ(std::vector<float>(got, got + s.sum.size()), s.sum);
    }
  }

  // The sentence of the error of f(), which comes soon.
  static std::string error_of(const auto& f) {
    const auto begin = std::chrono::steady_clock::now();
    std::string text;
    try {
      f();
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      text = e.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    return text;
  }

  std::vector<std::unique_ptr<StreamDevice>> devices_;
  std::deque<std::vector<float>> memory_;
};

TEST_F(NcclSums, AreThoseOfAllDevices) {
  {
    const auto nccl = make_nccl_collectives(machine());
    EXPECT_EQ(nccl->name(), "NCCL");
    for (int i = 0; i < 2; ++i) {
      const Summands s = summands();
      nccl->all_reduce(s.parts, kRows);
      expect_sums(s);
    }
  }
  EXPECT_THAT(fake_nccl().calls,
              ElementsAre("InitAll 0,1,2", "GroupStart", "AllReduce 0 150", "AllReduce 1 150",
                          "AllReduce 2 150", "GroupEnd", "GroupStart", "AllReduce 0 150", "AllReduce 1 150",
                          "AllReduce 2 150", "GroupEnd", "Destroy 0", "Destroy 1", "Destroy 2"));
}

// A sum that begins in the side queues is there once the devices wait for these.
TEST_F(NcclSums, BesideRuns) {
  const auto nccl = make_nccl_collectives(gpus());
  Summands s = summands();
  for (CollectivePart& part : s.parts) part.queue = part.device->side_queue();
  nccl->begin_all_reduce(s.parts, kRows);
  Summands next = summands();
  for (CollectivePart& part : next.parts) part.queue = part.device->side_queue();
  nccl->begin_all_reduce(next.parts, kRows);
  EXPECT_EQ(fake_nccl().n_side_sum, 2);
  for (const Summands* ended : {&s, &next}) {
    const std::span<const Event> events = nccl->end_all_reduce();
    for (const auto& device : devices_) EXPECT_EQ(device->n_late(), ended == &s ? 2u : 1u);
    for (size_t d = 0; d < devices_.size(); ++d) devices_[d]->side_queue()->lead(events[d]);
    expect_sums(*ended);
  }
}

// The parts of a sum may come in any order: each goes with its device's communicator.
TEST_F(NcclSums, InAnyOrder) {
  const auto nccl = make_nccl_collectives(gpus());
  Summands s = summands();
  std::swap(s.parts[0], s.parts[2]);
  nccl->all_reduce(s.parts, kRows);
  expect_sums(s);
}

// To a sum of some devices, and to columns that are joined, NCCL is not asked.
TEST_F(NcclSums, OfSomeDevicesGoOverHostMemory) {
  const auto nccl = make_nccl_collectives(machine());
  Summands s = summands();
  for (size_t i = 0; i < s.sum.size(); ++i) s.sum[i] -= reinterpret_cast<const float*>(s.parts[1].in)[i];
  s.parts[1].in = nullptr;
  nccl->all_reduce(s.parts, kRows);
  expect_sums(s);
  std::vector<float> joined(kRows * kCols * 3);
  Summands columns = summands();
  for (CollectivePart& part : columns.parts) part.out = nullptr;
  columns.parts[0].out = reinterpret_cast<DevicePtr>(joined.data());
  nccl->all_gather(columns.parts, kRows);
  for (size_t d = 0; d < 3; ++d)
    EXPECT_EQ(joined[kCols * 3 + d * kCols], reinterpret_cast<const float*>(columns.parts[d].in)[kCols]);
  EXPECT_EQ(fake_nccl().n_all_reduce, 0);
}

TEST_F(NcclSums, NoCommunicators) {
  fake_nccl().fail_create = 0;
  EXPECT_EQ(error_of([&] { make_nccl_collectives(gpus()); }),
            "NCCL creates no communicators: unhandled cuda error");
  fake_nccl().fail_create = 1;
  EXPECT_EQ(best_collectives(gpus())->name(), "host memory");
  EXPECT_EQ(best_collectives(gpus())->name(), "NCCL");
  EXPECT_EQ(best_collectives(std::vector<Device*>{host_.get(), devices_[0].get()})->name(), "host memory");
}

TEST_F(NcclSums, ACallFails) {
  const std::function<void()> failures[] = {[] { fake_nccl().fail_all_reduce = 4; },
                                            [] { fake_nccl().fail_group_end = 1; }};
  const char* const texts[] = {"all_reduce: NCCL reports: invalid argument",
                               "all_reduce: NCCL reports: unhandled system error"};
  for (size_t i = 0; i < 2; ++i) {
    reset_fake_nccl();
    failures[i]();
    {
      const auto nccl = make_nccl_collectives(gpus());
      const Summands s = summands(), other = summands();
      nccl->all_reduce(s.parts, kRows);
      EXPECT_EQ(error_of([&] { nccl->all_reduce(other.parts, kRows); }), texts[i]);
      EXPECT_TRUE(nccl->is_lost());
      EXPECT_EQ(error_of([&] { nccl->all_reduce(other.parts, kRows); }),
                "all_reduce: NCCL has failed before");
    }
    const std::vector<std::string>& calls = fake_nccl().calls;
    EXPECT_EQ(std::ranges::count(calls, "GroupStart"), 2);
    EXPECT_EQ(std::ranges::count(calls, "GroupEnd"), 2);  // also of the group that has failed
    EXPECT_THAT(std::vector(calls.end() - 3, calls.end()), ElementsAre("Abort 0", "Abort 1", "Abort 2"));
  }
}

// What communicators find out while a sum is on its way is said at once, and not after the limit.
TEST_F(NcclSums, AnErrorThatComesLater) {
  fake_nccl().hang_sum = 1;
  fake_nccl().async_error_of_sum = ncclRemoteError;
  {
    const auto nccl = make_nccl_collectives(machine(), 60);
    Summands s = summands();
    nccl->all_reduce(s.parts, kRows);
    nccl->all_reduce(s.parts, kRows);
    EXPECT_EQ(error_of([&] { nccl->wait(*devices_[1], devices_[1]->record(), "a step"); }),
              "a step: NCCL reports: remote process exited or there was a network error");
    EXPECT_TRUE(nccl->is_lost());
  }
  EXPECT_EQ(std::ranges::count(fake_nccl().calls, "Abort 2"), 1);

  reset_fake_nccl();  // while columns are joined behind it
  fake_nccl().hang_sum = 0;
  fake_nccl().async_error_of_sum = ncclInternalError;
  const auto nccl = make_nccl_collectives(machine(), 60);
  const Summands s = summands();
  nccl->all_reduce(s.parts, kRows);
  EXPECT_EQ(error_of([&] { nccl->all_gather(s.parts, kRows); }), "all_gather: NCCL reports: internal error");
  EXPECT_TRUE(nccl->is_lost());
}

TEST_F(NcclSums, ASumThatHangs) {
  fake_nccl().hang_sum = 1;
  {
    const auto nccl = make_nccl_collectives(machine(), 0.2);
    const Summands s = summands();
    nccl->all_reduce(s.parts, kRows);
    nccl->wait(*devices_[2], devices_[2]->record(), "a step");
    nccl->all_reduce(s.parts, kRows);
    EXPECT_EQ(error_of([&] { nccl->wait(*devices_[2], devices_[2]->record(), "a step"); }),
              "a step: CUDA2 has not answered within 0.2 s");
    EXPECT_TRUE(nccl->is_lost());
    EXPECT_EQ(error_of([&] { nccl->all_reduce(s.parts, kRows); }), "all_reduce: NCCL has failed before");
  }
  EXPECT_EQ(std::ranges::count(fake_nccl().calls, "Abort 0"), 1);
}

TEST_F(NcclSums, ACallThatDoesNotReturn) {
  fake_nccl().block_create = 0;
  EXPECT_EQ(error_of([&] { make_nccl_collectives(gpus(), 0.2); }),
            "NCCL creates communicators, and has not returned within 0.2 s");
  reset_fake_nccl();
  fake_nccl().block_group_end = 0;
  const auto nccl = make_nccl_collectives(gpus(), 0.2);
  const Summands s = summands();
  EXPECT_EQ(error_of([&] { nccl->all_reduce(s.parts, kRows); }),
            "NCCL connects the GPUs, and has not returned within 0.2 s");
  EXPECT_TRUE(nccl->is_lost());
}

TEST_F(NcclSums, AreMeasured) {
  const PeerRates rates = measure_peers(*make_nccl_collectives(gpus()), gpus());
  EXPECT_GT(rates.seconds, 0);
  EXPECT_GT(rates.bytes_per_s, 0);
  EXPECT_GE(fake_nccl().n_sum, 2);
}

// ---- Sessions ----

class NcclSession : public NcclSums, public testing::WithParamInterface<test::RecurrentKind> {
 protected:
  void SetUp() override {
    NcclSums::SetUp();
    const std::string path = directory_.path("model.gguf");
    test::recurrent_model(GetParam()).write(path);
    model_ = Model::load(path);
  }
  void TearDown() override {
    for (const auto& device : devices_) EXPECT_EQ(device->n_allocations(), 0);
    NcclSums::TearDown();
  }

  EngineOptions divided_options(double limit_s = kUsualLimitS) const {
    EngineOptions o = options(divided({1, 1, 1}), DType::F32);
    o.make_collectives = [limit_s](std::span<Device* const> devices) {
      return make_nccl_collectives(devices, limit_s);
    };
    return o;
  }

  // Prompts of more than 32 tokens in parts (exec/parts.h), without the planner.
  EngineOptions in_parts(int64_t n_parts, double limit_s = kUsualLimitS) const {
    EngineOptions o = divided_options(limit_s);
    o.context.n_ubatch = 48;
    o.context.n_state_checkpoints = 0;  // for which steps would end at blocks
    const OffloadOptions flags = divided({1, 1, 1});
    o.placement = place(model_->architecture(), model_->weights(), machine(), flags, 99);
    divide_caches(o.placement, session_graphs(model_->architecture(), o.context).decode);
    o.placement.parallel->parts = {n_parts, 33};
    return o;
  }

  std::unique_ptr<Model> model_;
};

// The sums of parts are in streams of their own, which those of runs wait for before they read a sum: this library adds no
// sooner than that.
TEST_P(NcclSession, PartsAddBesideRuns) {
  EngineOptions alone = options({}, DType::F32);
  alone.context.n_ubatch = 48;
  alone.context.n_state_checkpoints = 0;
  Session expected(*model_, {host_.get()}, alone);
  const auto rows = [](Session& s) {
    std::vector<float> all;
    for (const int n : {41, 48, 2, 1}) {
      const std::span<const float> row = s.append(prompt(n));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  };
  const std::vector<float> wanted = rows(expected);
  for (const int n_parts : {2, 3}) {
    reset_fake_nccl();
    Session session(*model_, machine(), in_parts(n_parts));
    EXPECT_LE(apart(rows(session), wanted), 1e-4f);
    constexpr int kLayers = 4;  // two sums of a part in each but the last, whose sums are of outputs
    const int n_steps = 2;
    EXPECT_EQ(fake_nccl().n_side_sum, n_steps * n_parts * 2 * (kLayers - 1));
  }
  for (const auto& device : devices_) EXPECT_EQ(device->n_late(), 0u) << "a sum that nobody waited for";
}

TEST_P(NcclSession, FailuresBesideRunsEndIt) {
  for (const int n : {0, 1, 5, 30}) {
    reset_fake_nccl();
    fake_nccl().fail_all_reduce = n;
    Session session(*model_, machine(), in_parts(n == 5 ? 2 : 3));
    for (const char* text : {"all_reduce: NCCL reports: invalid argument", "NCCL has failed before"})
      EXPECT_THAT(error_of([&] { session.append(prompt(48)); }), HasSubstr(text));
  }
  for (const int n : {0, 3, 11}) {
    for (const bool is_known : {false, true}) {
      reset_fake_nccl();
      fake_nccl().hang_sum = n;
      if (is_known) fake_nccl().async_error_of_sum = ncclRemoteError;
      Session session(*model_, machine(), in_parts(n == 3 ? 2 : 3, is_known ? 60 : 0.2));
      EXPECT_THAT(
          error_of([&] { session.append(prompt(48)); }),
          HasSubstr(is_known ? "NCCL reports: remote process exited" : "has not answered within 0.2 s"));
    }
  }
}

TEST_P(NcclSession, LogitsAreThoseOfOneDevice) {
  EngineOptions o = divided_options();
  o.make_collectives = {};  // as the program chooses
  {
    Session session(*model_, machine(), o);
    EXPECT_LE(apart(logits(session), cpu_logits(*model_, options({}, DType::F32))), 1e-4f);
    const int before = fake_nccl().n_sum;
    decode_one(session);
    EXPECT_EQ(static_cast<size_t>(fake_nccl().n_sum - before),
              session.placement().bytes.per_token.n_all_reduce);
  }
  EXPECT_EQ(fake_nccl().calls.back(), "Destroy 2");
}

TEST_P(NcclSession, FailuresEndIt) {
  for (const int n : {0, 1, 5, 40}) {
    reset_fake_nccl();
    fake_nccl().fail_all_reduce = n;
    Session session(*model_, machine(), divided_options());
    EXPECT_THAT(error_of([&] { logits(session); }), HasSubstr("all_reduce: NCCL reports: invalid argument"));
    EXPECT_THAT(error_of([&] { logits(session); }), HasSubstr("NCCL has failed before"));
  }
}

TEST_P(NcclSession, HangsEndIt) {
  for (const int n : {0, 3, 12}) {
    for (const bool is_known : {false, true}) {
      reset_fake_nccl();
      fake_nccl().hang_sum = n;
      if (is_known) fake_nccl().async_error_of_sum = ncclRemoteError;
      Session session(*model_, machine(), divided_options(is_known ? 60 : 0.2));
      EXPECT_THAT(
          error_of([&] { logits(session); }),
          HasSubstr(is_known ? "NCCL reports: remote process exited" : "has not answered within 0.2 s"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NcclSession,
                         testing::Values(test::RecurrentKind::delta_tiled,
                                         test::RecurrentKind::mamba_one_group),
                         [](const auto& param_info) { return test::name_of(param_info.param); });

}  // namespace
}  // namespace tandem
