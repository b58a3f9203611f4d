// The GPU options: argument vectors in, OffloadOptions out; and messages without a GPU.
#include "tools/options/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "support/process.h"
#include "tools/options/options.h"

namespace tandem::tools {
namespace {

CommandOptions parse_offload(std::vector<std::string> arguments) {
  CommandOptions options;
  const auto app = make_app("test", "tandem");
  CLI::App* run = app->add_subcommand("run", "runs");
  add_offload_options(*run, options.engine, options.explain);
  arguments.insert(arguments.begin(), "run");
  parse_arguments(*app, arguments);
  return options;
}

TEST(GpuOptions, Layers) {
  EXPECT_FALSE(parse_offload({}).engine.offload.n_gpu_layers);
  EXPECT_FALSE(parse_offload({"-ngl", "auto"}).engine.offload.n_gpu_layers);
  EXPECT_EQ(parse_offload({"-ngl", "20"}).engine.offload.n_gpu_layers, 20);
  EXPECT_EQ(parse_offload({"-ngl", "0"}).engine.offload.n_gpu_layers, 0);
  EXPECT_GT(*parse_offload({"-ngl", "all"}).engine.offload.n_gpu_layers, 10000);
  EXPECT_EQ(parse_offload({"--gpu-layers", "-1"}).engine.offload.n_gpu_layers,
            parse_offload({"--n-gpu-layers=all"}).engine.offload.n_gpu_layers);
  for (const char* bad : {"many", "", "1.5", "-2"}) EXPECT_THROW(parse_offload({"-ngl", bad}), Error) << bad;
}

TEST(GpuOptions, CacheAndExperts) {
  EXPECT_EQ(parse_offload({}).engine.offload.kv_on_host, Toggle::automatic);
  EXPECT_EQ(parse_offload({"-nkvo"}).engine.offload.kv_on_host, Toggle::on);
  EXPECT_EQ(parse_offload({"-nkvo", "--kv-offload"}).engine.offload.kv_on_host, Toggle::off);
  EXPECT_TRUE(parse_offload({"--kv-offload", "prefetch"}).engine.offload.kv_prefetched);
  EXPECT_FALSE(parse_offload({}).engine.offload.kv_split.has_value());
  EXPECT_EQ(parse_offload({"--kv-split", "4096"}).engine.offload.kv_split, 4096);
  EXPECT_THROW(parse_offload({"--kv-split", "0"}), Error);
  EXPECT_TRUE(parse_offload({"--kv-offload=prefetch"}).engine.offload.kv_prefetched);
  EXPECT_FALSE(parse_offload({"--kv-offload"}).engine.offload.kv_prefetched);
  EXPECT_THROW(parse_offload({"--kv-offload=elsewhere"}), Error);
  EXPECT_EQ(parse_offload({"--kv-layers-gpu", "3"}).engine.offload.n_kv_layers_gpu, 3);
  EXPECT_GT(parse_offload({"--cpu-moe"}).engine.offload.n_cpu_moe, 10000);
  EXPECT_EQ(parse_offload({"-ncmoe", "4"}).engine.offload.n_cpu_moe, 4);
}

TEST(GpuOptions, OverridesAndShares) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(
      parse_offload({"-ot", "ffn_.*_exps=CPU,attn=CUDA0", "-ot", "a=b=CPU"}).engine.offload.tensor_overrides,
      (Pairs{{"ffn_.*_exps", "CPU"}, {"attn", "CUDA0"}, {"a=b", "CPU"}}));
  EXPECT_THROW(parse_offload({"-ot", "ffn"}), Error);
  EXPECT_THROW(parse_offload({"-ot", "=CPU"}), Error);
  EXPECT_EQ(parse_offload({"-ts", "3,1"}).engine.offload.tensor_split, (std::vector<double>{3, 1}));
  EXPECT_EQ(parse_offload({"-ts", "3/1"}).engine.offload.tensor_split, (std::vector<double>{3, 1}));
  EXPECT_THROW(parse_offload({"-ts", "3,x"}), Error);
  EXPECT_THROW(parse_offload({"-ts", "-1"}), Error);
  EXPECT_THROW(parse_offload({"-ts", "inf"}), Error);
  EXPECT_EQ(parse_offload({"-sm", "none", "-mg", "1"}).engine.offload.split_mode, SplitMode::none);
  EXPECT_EQ(parse_offload({"-sm", "tensor"}).engine.offload.split_mode, SplitMode::tensor);
  EXPECT_THROW(parse_offload({"-sm", "row"}), Error);
  EXPECT_EQ(parse_offload({"-dev", "CUDA1,CUDA0"}).engine.devices.gpus,
            (std::vector<std::string>{"CUDA1", "CUDA0"}));
  EXPECT_TRUE(parse_offload({"-dev", "none"}).engine.devices.no_gpus);
}

TEST(GpuOptions, Streaming) {
  EXPECT_EQ(parse_offload({}).engine.offload.stream, Toggle::automatic);
  EXPECT_EQ(parse_offload({"--stream-weights"}).engine.offload.stream, Toggle::on);
  EXPECT_EQ(parse_offload({"--stream-weights=auto"}).engine.offload.stream, Toggle::automatic);
  EXPECT_EQ(parse_offload({"--stream-weights=off"}).engine.offload.stream, Toggle::off);
  EXPECT_EQ(parse_offload({"--gpu-weights-percent", "30"}).engine.offload.gpu_weights_percent, 30);
  EXPECT_EQ(parse_offload({"--cpu-offload-gb", "2.5"}).engine.offload.cpu_offload_gib, 2.5);
  EXPECT_THROW(parse_offload({"--stream-weights=sometimes"}), Error);
  EXPECT_THROW(parse_offload({"--gpu-weights-percent", "101"}), Error);
  EXPECT_THROW(parse_offload({"--cpu-offload-gb", "-1"}), Error);
}

TEST(GpuOptions, GpuRows) {
  EXPECT_FALSE(parse_offload({}).engine.offload.expert_cache);
  EXPECT_FALSE(parse_offload({"--expert-cache", "auto"}).engine.offload.expert_cache);
  EXPECT_EQ(parse_offload({"--expert-cache", "off"}).engine.offload.expert_cache, 0u);
  EXPECT_EQ(parse_offload({"--expert-cache", "2GiB"}).engine.offload.expert_cache, size_t{2} << 30);
  for (const char* bad : {"", "some", "-1", "2 parsecs"})
    EXPECT_THROW(parse_offload({"--expert-cache", bad}), Error) << bad;
  EXPECT_FALSE(parse_offload({}).engine.offload.gpu_rows);
  EXPECT_FALSE(parse_offload({"--gpu-rows", "auto"}).engine.offload.gpu_rows);
  EXPECT_EQ(parse_offload({"--gpu-rows", "off"}).engine.offload.gpu_rows, 1.0);
  EXPECT_EQ(parse_offload({"--gpu-rows", "25"}).engine.offload.gpu_rows, 0.25);
  EXPECT_EQ(parse_offload({"--gpu-rows", "62.5%"}).engine.offload.gpu_rows, 0.625);
  for (const char* bad : {"0", "100", "-5", "101", "half", "%", ""}) {
    EXPECT_THROW(parse_offload({"--gpu-rows", bad}), Error) << bad;
  }
}

TEST(GpuOptions, PinWeights) {
  EXPECT_EQ(parse_offload({}).engine.offload.pin, Toggle::automatic);
  EXPECT_EQ(parse_offload({"--pin-weights", "auto"}).engine.offload.pin, Toggle::automatic);
  EXPECT_EQ(parse_offload({"--pin-weights"}).engine.offload.pin, Toggle::on);
  EXPECT_EQ(parse_offload({"--pin-weights", "off"}).engine.offload.pin, Toggle::off);
  EXPECT_THROW(parse_offload({"--pin-weights=some"}), Error);
  EXPECT_EQ(parse_offload({}).engine.offload.huge_pages, Toggle::automatic);
  EXPECT_EQ(parse_offload({"--huge-pages"}).engine.offload.huge_pages, Toggle::on);
  EXPECT_EQ(parse_offload({"--huge-pages", "off"}).engine.offload.huge_pages, Toggle::off);
}

TEST(GpuOptions, Budgets) {
  EXPECT_FALSE(parse_offload({}).engine.offload.budgets.max_vram);
  EXPECT_EQ(parse_offload({"--max-vram", "8GiB"}).engine.offload.budgets.max_vram, size_t{8} << 30);
  EXPECT_EQ(parse_offload({"--max-vram", "8g"}).engine.offload.budgets.max_vram, size_t{8} << 30);
  EXPECT_EQ(parse_offload({"--max-ram", "500MB"}).engine.offload.budgets.max_ram, 500000000u);
  EXPECT_EQ(parse_offload({"--max-ram", "1.5K"}).engine.offload.budgets.max_ram, 1536u);
  EXPECT_EQ(parse_offload({"--max-ram", "77"}).engine.offload.budgets.max_ram, 77u);
  EXPECT_EQ(parse_offload({"--gpu-memory-utilization", "0.9"}).engine.offload.budgets.vram_utilization, 0.9);
  EXPECT_TRUE(parse_offload({}).engine.offload.choose_by_speed);
  EXPECT_FALSE(parse_offload({"--no-fit"}).engine.offload.choose_by_speed);
  EXPECT_TRUE(parse_offload({"--fit-kv-quant"}).engine.offload.may_quantize_kv);
  EXPECT_TRUE(parse_offload({}).engine.oom_ladder);
  EXPECT_FALSE(parse_offload({"--no-oom-ladder"}).engine.oom_ladder);
  for (const char* bad : {"", "GiB", "8 GiB", "8GiBs", "-8GiB", "1.2.3G", "9999999999T"}) {
    EXPECT_THROW(parse_offload({"--max-vram", bad}), Error) << bad;
  }
  EXPECT_THROW(parse_offload({"--gpu-memory-utilization", "1.1"}), Error);
}

TEST(GpuOptions, OnlyANamedGpuMustBeThere) {
  TANDEM_NEED_BINARY();
  const test::Outcome list = test::shell("", "run --list-devices 2>/dev/null");
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_EQ(list.out.rfind("CPU ", 0), 0u);
  const test::Outcome none = test::shell("", "run -m nothing.gguf -p a -dev none -ngl 3 2>&1");
  EXPECT_EQ(none.exit_code, 5);  // for the file
  EXPECT_THAT(none.out, testing::HasSubstr("-ngl has no effect"));
  EXPECT_EQ(test::shell("", "run -m nothing.gguf -p a -dev CUDA99 2>/dev/null").exit_code, 2);
}

}  // namespace
}  // namespace tandem::tools
