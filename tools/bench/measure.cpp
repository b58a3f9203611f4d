#include "tools/bench/measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/interrupt.h"
#include "cpu/host_memory.h"
#include "plan/bandwidth.h"
#include "tools/setup.h"
#include "tools/synth/random.h"

namespace tandem::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSeed = 42;  // fixed, so that all versions compute the same tokens

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::string utc_now() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Resident memory of this process; 0 if unknown.
size_t resident_bytes() {
  std::ifstream pages("/proc/self/statm");
  size_t all = 0, resident = 0;
  pages >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

void check_interrupt() {
  if (interrupted()) throw Error(ErrorCode::interrupted, "interrupted");
}

// Cache bytes per token, over all layers.
size_t kv_bytes_per_token(const Model& model, const BenchCase& c) {
  size_t n = 0;
  for (int layer = 0; layer < model.hparams().n_layer; ++layer) {
    const KvShape shape = model.architecture().kv_shape(layer);
    n += static_cast<size_t>(shape.n_head_kv) *
         (static_cast<size_t>(shape.n_key_sets) * row_bytes(c.type_k, shape.head_dim_k) +
          row_bytes(c.type_v, shape.head_dim_v));
  }
  return n;
}

// Bytes per second, read and written, of a copy within the device's memory: the best of 10.
double measure_copy_bandwidth(Device& device) {
  const size_t n_bytes = std::min(size_t{1} << 30, device.memory_info().free_bytes / 4);
  const DevicePtr memory = device.alloc(2 * n_bytes);
  double best = 0;
  for (int i = 0; i < 10; ++i) {
    const Clock::time_point start = Clock::now();
    device.copy_within(memory + n_bytes, memory, n_bytes);
    device.wait(device.record());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, 2.0 * static_cast<double>(n_bytes) / seconds);
  }
  device.free(memory);
  return best;
}

// Of the devices that hold layers, their caches or the output: "CPU+SIM".
std::string backend_names(const Placement& placement, std::span<const std::unique_ptr<Device>> devices) {
  std::set<DeviceId> used{placement.output};
  for (const LayerPlacement& layer : placement.layers) used.insert({holder(layer.weights), holder(layer.kv)});
  std::vector<std::string> names;
  for (const DeviceId d : used) {
    const std::string& name = devices[d.index()]->info().backend;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

void describe_placement(const Session& session, BenchResult& result) {
  const Fit& fit = session.placement();
  result.n_ctx = session.n_ctx();
  result.n_cpu_moe = fit.choice.n_cpu_moe;
  result.kv_on_host = std::holds_alternative<CacheOnHost>(fit.choice.cache);
  result.kv_prefetched = std::holds_alternative<PrefetchedCache>(fit.choice.cache);
  result.streaming = streaming_name(fit.choice.streaming);
  result.generic_kernels = session.generic_kernels();
  result.predicted = fit.speed;
  result.mapped_weights = fit.bytes.mapped_weights;
  for (const DeviceBytes& bytes : fit.bytes.devices) result.planned_bytes.push_back(bytes.total());
}

}  // namespace

BenchMachine inspect_machine() {
  BenchMachine machine;
  machine.cpu = cpu_name();
  machine.bandwidth_threads = physical_core_count();
  ThreadPool pool(machine.bandwidth_threads);
  machine.bandwidth =
      measure_read_bandwidth(pool, bandwidth_buffer_bytes(cpu::host_memory_info().free_bytes));
  const auto devices = make_devices({});
  for (size_t d = 1; d < devices.size(); ++d) {
    machine.gpus += (d > 1 ? ", " : "") + devices[d]->info().description;
    if (d > 1) continue;
    machine.gpu_backend = devices[d]->info().backend;
    machine.gpu_bandwidth = measure_copy_bandwidth(*devices[d]);
  }
  return machine;
}

void BenchRunner::load(const BenchCase& c) {
  const bool is_other_model = !model_ || model_path_ != c.model || model_mapped_ != c.mmap;
  const bool is_other_pool = devices_.empty() || n_threads_ != c.n_threads || isa_ != c.isa;
  if (is_other_model) {
    model_.reset();  // memory may not hold two models
    usual_ = settings_.engine;
    usual_.model.path = c.model;
    usual_.model.open.mmap = c.mmap;
    model_ = load_model(usual_);
    model_path_ = c.model;
    model_mapped_ = c.mmap;
  }
  if (is_other_pool) {
    devices_.clear();
    usual_.devices.n_threads = c.n_threads;
    usual_.devices.isa = c.isa;
    devices_ = make_devices(usual_);
    n_threads_ = c.n_threads;
    isa_ = c.isa;
  }
  if (!is_other_model && !is_other_pool) return;
  measure_speeds(usual_, devices_, *model_);
}

EngineOptions BenchRunner::options_for(const BenchCase& c) const {
  EngineOptions options = usual_;
  ContextOptions& context = options.context;
  context.n_ctx = std::max<int64_t>(c.n_depth + c.n_tokens(), settings_.n_ctx);
  context.n_batch = c.step_size();  // no step is wider than the one that is named
  context.n_batch_given = true;
  context.n_ubatch = c.n_ubatch;
  context.k_dtype = c.type_k;
  context.v_dtype = c.type_v;
  if (c.n_gpu_layers != kAutoGpuLayers) options.offload.n_gpu_layers = c.n_gpu_layers;
  if (c.no_kv_offload) options.offload.kv_on_host = Toggle::on;
  options.offload.huge_pages_at_once = true;  // generating is measured as in a long text
  return options;
}

void BenchRunner::run_prompt(Session& session, int64_t n_tokens) {
  if (n_tokens == 0) return;
  session.append(std::span(ids_).first(n_tokens), LogitsWanted::largest,
                 [](int64_t) { return !interrupted(); });
  check_interrupt();
}

void BenchRunner::run_generation(Session& session, int64_t n_tokens) {
  for (int64_t i = 0; i < n_tokens; ++i) {
    session.append(std::span(ids_).subspan(static_cast<size_t>(i) % ids_.size(), 1), LogitsWanted::largest);
    check_interrupt();
  }
}

// Once; or, where weights are fetched that move to page-locked memory in the first steps, until they are there.
void BenchRunner::warm_up(Session& session, const BenchCase& c) {
  constexpr int kMost = 40;
  const Executor& executor = session.executor();
  const bool pins = session.placement().placement.pins_fetched;
  bool fetches = false;
  for (size_t d = 1; d < devices_.size(); ++d) fetches |= executor.slot_bytes(DeviceId::at(d)) > 0;
  size_t pinned_before = 0;
  for (int i = 0; i < kMost; ++i) {
    if (i > 0) session.truncate(c.n_depth);
    run_prompt(session, c.n_prompt);
    run_generation(session, c.n_gen > 0 ? 1 : 0);
    if (!pins || !fetches) return;
    const bool may_begin = i <= static_cast<int>(PinnedWeights::kFetchesBefore);
    if (!may_begin && executor.pinned_bytes() == pinned_before) return;
    pinned_before = executor.pinned_bytes();
  }
}

BenchResult BenchRunner::run(const BenchCase& c, const Stage& stage) {
  stage("loading");
  load(c);
  const std::vector<size_t> free_before = free_memory();
  Session session(*model_, pointers(devices_), options_for(c), explain_on_stderr(settings_.explain));
  Random random(kSeed);
  ids_.resize(std::max({c.n_prompt, c.n_depth, c.n_gen}));
  for (int32_t& id : ids_)
    id = static_cast<int32_t>(random.below(static_cast<uint32_t>(model_->hparams().n_vocab)));

  BenchResult result;
  result.test = c;
  // The session may have chosen a smaller micro-batch, or had memory only for that.
  if (session.n_ubatch() < std::min(c.step_size(), session.n_ctx())) {
    result.test.n_ubatch = static_cast<int32_t>(session.n_ubatch());
  }
  result.test.type_k = session.kv_config().k_dtype;
  result.test.type_v = session.kv_config().v_dtype;
  result.backend = backend_names(session.placement().placement, devices_);
  result.n_gpu_layers = std::min(session.placement().choice.n_gpu_layers, model_->hparams().n_layer + 1);
  describe_placement(session, result);
  result.model_type = model_->description();
  result.model_bytes = model_->n_weight_bytes();
  result.weights_read_per_token = model_->bytes_read_per_token();
  result.n_params = model_->n_params();
  result.bytes_per_token = bytes_read_per_token(result.test, model_->bytes_read_per_token(),
                                                kv_bytes_per_token(*model_, result.test));
  result.test_time = utc_now();

  if (c.n_depth > 0) stage("depth");
  run_prompt(session, c.n_depth);
  if (settings_.warmup) {
    stage("warm-up");
    warm_up(session, c);
  }
  const uint64_t streamed_before = session.executor().streamed_bytes();
  for (int32_t i = 0; i < settings_.repetitions; ++i) {
    stage(format("{}/{}", i + 1, settings_.repetitions));
    session.truncate(c.n_depth);
    const Clock::time_point start = Clock::now();
    run_prompt(session, c.n_prompt);
    run_generation(session, c.n_gen);
    const auto elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
    result.samples_ns.push_back(static_cast<uint64_t>(std::max<int64_t>(elapsed.count(), 1)));
  }
  result.streamed_bytes_per_token =
      static_cast<double>(session.executor().streamed_bytes() - streamed_before) /
      static_cast<double>(settings_.repetitions * c.n_tokens());
  const std::vector<size_t> free_now = free_memory();
  result.used_bytes.push_back(resident_bytes());
  for (size_t d = 1; d < devices_.size(); ++d) {
    result.used_bytes.push_back(free_before[d] - std::min(free_before[d], free_now[d]));
  }
  return result;
}

// Free bytes of each GPU; [0] is unused.
std::vector<size_t> BenchRunner::free_memory() const {
  std::vector<size_t> bytes(devices_.size(), 0);
  for (size_t d = 1; d < devices_.size(); ++d) bytes[d] = devices_[d]->memory_info().free_bytes;
  return bytes;
}

}  // namespace tandem::tools
