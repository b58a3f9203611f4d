#include "tools/stages.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "cpu/host_memory.h"
#include "engine/model_identity.h"
#include "plan/rates.h"
#include "ranks/gather.h"
#include "setup/setup.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

// Of all bytes of the model's files.
std::string hash_of_files(const Model& model) {
  std::string all;
  for (const MappedFile& part : model.file().parts()) all += hex_text(sha256(part.bytes()));
  return hex_text(sha256(all));
}

double free_gpu_bytes(const Device& gpu, const OffloadOptions& offload) {
  const auto free = static_cast<double>(gpu.memory_info().free_bytes);
  const auto most = static_cast<double>(offload.budgets.max_vram.value_or(SIZE_MAX));
  // Activations and scratch need some, too.
  return std::max(0.0, 0.9 * std::min(free, most) - static_cast<double>(offload.budgets.vram_overhead));
}

// Layers by speed: that of GPUs is measured; without any, and on one machine, threads tell enough.
RankPower power_of(const std::vector<std::unique_ptr<Device>>& devices, const HostShare& share, bool measured,
                   const EngineOptions& engine) {
  RankPower power;
  const auto host = static_cast<double>(cpu::host_memory_info().free_bytes);
  const size_t max_ram = engine.offload.budgets.max_ram.value_or(SIZE_MAX);
  power.host_bytes = std::min(host / share.n_here, static_cast<double>(max_ram));
  const int32_t n_threads = engine.devices.n_threads;
  power.host_bytes_per_s = 1e9 * (n_threads > 0 ? n_threads : physical_core_count());
  if (measured && !engine.rates.empty()) power.host_bytes_per_s = engine.rates[0].memory() / share.n_on_cores;
  if (engine.offload.n_gpu_layers == 0) return power;
  double seconds = 0;  // to read all
  for (size_t d = 1; d < devices.size(); ++d) {
    const double n_bytes = free_gpu_bytes(*devices[d], engine.offload);
    power.gpu_bytes += n_bytes;
    seconds += n_bytes / (d < engine.rates.size() ? engine.rates[d].read_bytes_per_s : 1e12);
  }
  // Whole layers one GPU after the other; what is divided all read at once.
  const bool together = engine.offload.split_mode == SplitMode::tensor;
  const auto n_at_once = static_cast<double>(together ? devices.size() - 1 : 1);
  if (seconds > 0) power.gpu_bytes_per_s = n_at_once * power.gpu_bytes / seconds;
  return power;
}

constexpr int64_t kUsualContext = 4096;

}  // namespace

void add_stage_options(CLI::App& app, StageOptions& o) {
  const char* group = "Several machines";
  flag(app, "--mpi", o.mpi,
       "divide the layers over all ranks that mpirun or srun has started, on one machine or several; rank 0 "
       "has the terminal")
      .group(group);
  choice(app, "--rank-layers", "N,N,...", "layers of each rank (default: by speed and memory)", "",
         [&o](const std::string& value) {
           o.layers.clear();
           for (const std::string& part : split_list(value))
             o.layers.push_back(parse_integer("--rank-layers", part, 1));
         })
      .group(group);
  flag(app, "--compare-files", o.compare_files,
       "with --mpi, compare all bytes of the ranks' model files, not only metadata and samples of every "
       "tensor")
      .group(group);
}

void check_stage_options(const EngineOptions& engine) {
  const auto refuse = [](const char* flag, const char* why) {
    throw_error(ErrorCode::usage, "{} contradicts --mpi: {}", flag, why);
  };
  const OpenOptions& open = engine.model.open;
  if (open.mlock) refuse("--mlock", "it would lock the layers of other ranks too");
  if (!open.mmap) refuse("--no-mmap", "it would read the layers of other ranks too");
  if (engine.devices.numa == Numa::distribute)
    refuse("--numa distribute", "start a rank on each node of memory instead");
  if (engine.context.keeps_hidden)
    refuse("--spec mtp", "the MTP layer needs what the last rank makes of every token");
}

StagedModel::StagedModel(Ranks& ranks, const StageOptions& options, EngineOptions& engine)
    : ranks_(ranks), pipeline_(ranks) {
  const HostShare share = host_share(ranks);
  std::optional<Error> failure;
  attempt(failure, [&] {
    share_host(share, engine);
    engine.model.open.prefetch = false;  // keep_layers() reads ahead what is needed
    if (engine.devices.numa == Numa::automatic) engine.devices.numa = Numa::none;  // which copies no model
    devices_ = make_devices(engine);
    model_ = open_model(engine);
  });
  agree(ranks, failure);
  agree_on(ranks, "the model", fingerprint(*model_));
  if (options.compare_files) agree_on(ranks, "a byte of the model's files", hash_of_files(*model_));
  divide(options, share, engine);
  agree_on_context(engine);
  engine.relay = &pipeline_;
  engine.oom_ladder = false;  // the ranks' micro-batches must stay equal
}

void StagedModel::divide(const StageOptions& options, const HostShare& share, EngineOptions& engine) {
  const Architecture& whole = model_->architecture();
  std::optional<Error> failure;
  const bool measures = share.n_hosts > 1 && ranks_.size() > 1 && options.layers.empty();
  RankPower mine;
  attempt(failure, [&] {
    measure_speeds(engine, devices_, *model_);
    EngineOptions known = engine;
    if (measures && known.rates.empty())
      known.rates = rates_of(pointers(devices_), RatesCache(RatesCache::usual_path()));
    mine = power_of(devices_, share, measures || devices_.size() > 1, known);
  });
  agree(ranks_, failure);
  const std::vector<RankPower> powers = gather(ranks_, mine);
  attempt(failure, [&] {
    const std::vector<bool> cuts = possible_cuts(whole);
    const int64_t n_ctx = engine.context.n_ctx > 0
                              ? engine.context.n_ctx
                              : std::min(kUsualContext, model_->hparams().n_ctx_usable());
    ranges_ = options.layers.empty()
                  ? divide_layers(layer_loads(whole), cuts, powers, static_cast<double>(n_ctx)).ranges
                  : given_layers(options.layers, cuts, powers.size());
    const LayerRange range = ranges_[static_cast<size_t>(ranks_.rank())];
    model_->keep_layers(range);
    // The last layers of the rank, not of the model.
    std::optional<int64_t>& n_gpu_layers = engine.offload.n_gpu_layers;
    const int64_t n_layer = model_->hparams().n_layer;
    if (n_gpu_layers.value_or(0) > 0 && range.end < n_layer) *n_gpu_layers += n_layer + 1 - range.end;
  });
  agree(ranks_, failure);
}

// Each rank plans what it has room for; all take the least.
void StagedModel::agree_on_context(EngineOptions& engine) {
  std::optional<Error> failure;
  ContextOptions shape;
  attempt(failure, [&] { shape = planned_context(*model_, pointers(devices_), engine); });
  agree(ranks_, failure);
  struct Sizes {
    int64_t n_ctx, n_ubatch;
  };
  for (const Sizes& other : gather(ranks_, Sizes{shape.n_ctx, shape.n_ubatch})) {
    shape.n_ctx = std::min(shape.n_ctx, other.n_ctx);
    shape.n_ubatch = std::min(shape.n_ubatch, other.n_ubatch);
  }
  engine.context.n_ctx = shape.n_ctx;
  engine.context.n_ubatch = shape.n_ubatch;
  engine.context.n_ubatch_given = true;
}

std::string StagedModel::layers_text() const {
  std::string text = "layers";
  for (size_t i = 0; i < ranges_.size(); ++i) {
    text += format("{} {}-{} on {}", i == 0 ? "" : ",", ranges_[i].first, ranges_[i].end - 1,
                   ranks_.name_of(static_cast<int>(i)));
  }
  return text;
}

std::string StagedModel::times_text() {
  return stage_table(ranks_, ranges_, pipeline_.all_times());
}

void StagedModel::watch() {
  constexpr std::chrono::seconds kEvery{5};
  pipeline_.watch(kEvery, [](const std::string& text) { log_info("ranks: {}", text); });
}

std::function<void(const std::string& table)> StagedModel::explain(bool wanted) const {
  if (!wanted) return nullptr;
  return [this](const std::string& table) {
    const LayerRange range = ranges_[static_cast<size_t>(ranks_.rank())];
    fputs(format("{}, layers {} to {}:\n{}", ranks_.name_of(ranks_.rank()), range.first, range.end - 1, table)
              .c_str(),
          stderr);
  };
}

void StagedModel::follow(const EngineOptions& engine, bool explain) {
  std::unique_ptr<Runtime> runtime;
  std::optional<Error> failure;
  attempt(failure, [&] {
    runtime = std::make_unique<Runtime>(*model_, pointers(devices_), engine, this->explain(explain));
  });
  agree(ranks_, failure);
  install_interrupt_handler();  // rank 0 ends all
  pipeline_.follow(*runtime);
}

}  // namespace tandem::tools
