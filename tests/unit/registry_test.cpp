// The registry, and a backend that the program does not have: it is listed, chosen from, placed on and run
// without a word about it anywhere else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu/cpu_device.h"
#include "device/registry.h"
#include "engine/session.h"
#include "plan/imagined_device.h"
#include "support/gguf_bytes.h"
#include "support/sim_device.h"
#include "support/tiny_model.h"
#include "setup/backends.h"
#include "tools/setup.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Backend host_backend() {
  return {"CPU", [] {
            FoundDevices found;
            found.devices.push_back(cpu::make_cpu_device({1, 1}));
            return found;
          }};
}

constexpr KnownDevice kSims[] = {{"small sim", 1, {1e9, 1e9, 1e9, 1e-6, 1e-6}},
                                 {"large sim", 4, {2e9, 2e9, 2e9, 1e-6, 1e-6}}};

Backend sim_backend(int n_devices = 2) {
  const auto find = [n_devices] {
    FoundDevices found;
    for (int i = 0; i < n_devices; ++i) {
      found.devices.push_back(
          std::make_unique<test::SimDevice>(test::SimOptions{.name = "SIM" + std::to_string(i)}));
    }
    if (n_devices == 0) found.why_none = "nobody simulates one";
    return found;
  };
  return {"SIM", find, [](const Weight& w) { return 2 * w.n_bytes(); }, kSims};
}

Backend none_backend(const std::string& name) {
  return {name, [] { return FoundDevices{{}, "no driver"}; }, [](const Weight&) { return size_t{1}; }};
}

std::vector<std::string> names_of(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<std::string> names;
  for (const auto& device : devices) names.push_back(device->info().name);
  return names;
}

TEST(Registry, FindsTheDevicesOfAllBackends) {
  const Registry registry({host_backend(), none_backend("NONE"), sim_backend()});
  EXPECT_EQ(registry.make_host()->info().name, "CPU");
  const FoundDevices found = registry.find_gpus();
  EXPECT_THAT(names_of(found.devices), ElementsAre("SIM0", "SIM1"));
  EXPECT_EQ(found.why_none, "");
  EXPECT_EQ(found.devices[0]->info().backend, "SIM");
}

TEST(Registry, SaysWhyThereIsNone) {
  EXPECT_EQ(Registry({host_backend(), sim_backend(0)}).find_gpus().why_none, "nobody simulates one");
  EXPECT_EQ(Registry({host_backend(), none_backend("NONE"), sim_backend(0)}).find_gpus().why_none,
            "NONE: no driver; SIM: nobody simulates one");
  EXPECT_EQ(Registry({host_backend()}).find_gpus().why_none, "this program was built without a GPU backend");
}

TEST(Registry, KnowsGpusByNameAndHowWeightsLieOnThem) {
  const Registry registry({host_backend(), none_backend("NONE"), sim_backend()});
  const Weight weight{"w", DType::F32, 1, 4, 32};
  ASSERT_TRUE(registry.find_known("large sim"));
  const KnownGpu gpu = *registry.find_known("large sim");
  EXPECT_EQ(gpu.memory_gib, 4);
  EXPECT_EQ(gpu.weight_bytes(weight), 2 * weight.n_bytes());
  EXPECT_EQ(registry.usual_weight_bytes()(weight), 1u);
  EXPECT_FALSE(registry.find_known("voodoo2"));
  EXPECT_THROW(Registry({host_backend()}).usual_weight_bytes(), Error);
}

TEST(Registry, TheProgramsOwnBackends) {
  const Registry registry = backends();
  EXPECT_EQ(registry.backends().front().name, "CPU");
  EXPECT_TRUE(registry.make_host()->info().host_memory);
  for (const Backend& backend : registry.gpu_backends()) {
    const FoundDevices found = backend.find();
    EXPECT_EQ(found.devices.empty(), !found.why_none.empty()) << backend.name;
    for (const auto& device : found.devices) EXPECT_EQ(device->info().backend, backend.name);
  }
  EXPECT_GT(registry.known_gpus().size(), 5u);
  const Weight weight{"w", DType::F32, 1, 4, 32};
  for (const KnownGpu& gpu : registry.known_gpus()) {
    EXPECT_EQ(registry.find_known(gpu.name)->memory_gib, gpu.memory_gib) << gpu.name;
    EXPECT_GE(gpu.weight_bytes(weight), weight.n_bytes());
    EXPECT_GT(gpu.rates.read_bytes_per_s, 0);
  }
}

class ThirdBackend : public testing::Test {
 protected:
  static std::string error_of(const Registry& registry, const EngineOptions& options) {
    try {
      tools::devices_of(registry, options);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  Registry registry_{{host_backend(), none_backend("NONE"), sim_backend()}};
};

TEST_F(ThirdBackend, IsListed) {
  const std::string table = tools::device_table(tools::devices_of(registry_));
  EXPECT_THAT(table, HasSubstr("CPU "));
  EXPECT_THAT(table, HasSubstr("\nSIM0     simulated, 1024 MiB, 1024 MiB free"));
  EXPECT_THAT(table, HasSubstr("\nSIM1 "));
}

TEST_F(ThirdBackend, IsChosenFrom) {
  EngineOptions options;
  EXPECT_THAT(names_of(tools::devices_of(registry_, options)), ElementsAre("CPU", "SIM0", "SIM1"));
  options.devices.gpus = {"SIM1"};
  EXPECT_THAT(names_of(tools::devices_of(registry_, options)), ElementsAre("CPU", "SIM1"));
  options.devices.gpus = {"SIM2"};
  EXPECT_THAT(error_of(registry_, options), HasSubstr("devices: there is no GPU named SIM2"));
  options.devices.gpus.clear();
  options.devices.no_gpus = true;
  EXPECT_THAT(names_of(tools::devices_of(registry_, options)), ElementsAre("CPU"));
  const Registry without({host_backend(), sim_backend(0)});
  options.devices.no_gpus = false;
  options.offload.n_gpu_layers = 1;  // a warning: model cards say -ngl 99 to everybody
  testing::internal::CaptureStderr();
  EXPECT_THAT(names_of(tools::devices_of(without, options)), ElementsAre("CPU"));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(HasSubstr("-ngl has no effect"), HasSubstr("nobody simulates one")));
  options.offload.stream = Toggle::on;
  EXPECT_THAT(error_of(without, options), HasSubstr("nobody simulates one"));
}

TEST_F(ThirdBackend, IsPlacedOnAndRuns) {
  const test::TempDir directory;
  const std::string path = directory.path("tiny.gguf");
  test::tiny_llama({}, 3).write(path);
  const auto model = Model::load(path);
  const auto devices = tools::devices_of(registry_);
  EngineOptions options;
  options.context.n_ctx = 64;
  const std::vector<int32_t> prompt{3, 77, 12, 9};
  const auto logits = [&](Session& session) {
    const std::span<const float> row = session.append(prompt);
    return std::vector<float>(row.begin(), row.end());
  };
  Session alone(*model, {devices.front().get()}, options);
  const std::vector<float> expected = logits(alone);

  options.offload.n_gpu_layers = 2;
  options.offload.tensor_overrides = {{"blk.1", "SIM1"}};
  std::string table;
  Session session(*model, pointers(devices), options, [&](const std::string& text) { table = text; });
  EXPECT_THAT(table, HasSubstr("SIM0"));
  EXPECT_EQ(logits(session), expected);
  for (size_t d = 1; d < 3; ++d) EXPECT_GT(static_cast<test::SimDevice&>(*devices[d]).n_runs(), 0) << d;
}

TEST_F(ThirdBackend, CanBePlannedFor) {
  const KnownGpu gpu = *registry_.find_known("small sim");
  const ImaginedDevice imagined(std::string(gpu.name), size_t{1} << 30, gpu.weight_bytes);
  const Weight weight{"w", DType::F32, 1, 4, 32};
  EXPECT_EQ(imagined.weight_bytes(weight), 2 * weight.n_bytes());
  EXPECT_EQ(imagined.info().name, "small sim");
}

}  // namespace
}  // namespace tandem
