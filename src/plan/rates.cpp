#include "plan/rates.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "graph/builder.h"
#include "plan/bandwidth.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr DType kDType = DType::Q4_K;
constexpr int64_t kColumns = 2048, kRows = 4096;
constexpr int64_t kBatch = 256;
constexpr size_t kReadBytes = size_t{96} << 20;  // of matrices on the host: more than caches hold
constexpr size_t kGpuReadBytes = size_t{300} << 20;
constexpr size_t kBusBytes = size_t{64} << 20;
constexpr int kFetches = 4;
constexpr double kMostSeconds = 0.25;  // for one number

// What goes on beside each timed run.
struct Beside {
  std::function<void()> begin;
  std::function<void(double run_s)> end;
};

// Graphs of products with random-looking matrices, and the memory to run them on a device.
class Bench {
 public:
  Bench(Device& device, int64_t n_rows)
      : device_(device), n_rows_(n_rows), data_(matrix_bytes(n_rows), std::byte{0x11}) {}
  ~Bench() {
    for (const DevicePtr p : allocated_) device_.free(p);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  static size_t matrix_bytes(int64_t n_rows) {
    return row_bytes(kDType, kColumns) * static_cast<size_t>(n_rows);
  }

  // Seconds of n_matrices products with n_tokens rows; the best of several runs.
  double products(int64_t n_tokens, size_t n_matrices, const Beside& beside = {}) {
    std::vector<std::byte> table_data(row_bytes(DType::F32, kColumns) * 2);
    Weight table{"table", DType::F32, 1, 2, kColumns, table_data.data()};
    std::vector<std::vector<std::byte>> copies(device_.info().host_memory ? n_matrices : 0, data_);
    std::deque<Weight> matrices;
    for (size_t i = 0; i < n_matrices; ++i) {
      matrices.push_back(
          {"matrix", kDType, 1, n_rows_, kColumns, copies.empty() ? data_.data() : copies[i].data()});
    }
    ShapeClass shape;
    shape.max_tokens = n_tokens;
    GraphBuilder builder(shape);
    const TensorId x = builder.embed(&table);
    TensorId y = kNoTensor;
    for (const Weight& w : matrices) y = builder.linear(x, &w);
    const Graph graph = builder.finish(builder.gather_outputs(y));
    return seconds_of(graph, {n_tokens, 1}, beside);
  }

  double bus_bytes_per_s() {
    std::vector<std::byte> host(kBusBytes, std::byte{1});
    const DevicePtr memory = alloc(kBusBytes);
    const Weight weight{
        "bus", DType::F32, 1, 1, static_cast<int64_t>(kBusBytes / sizeof(float)), host.data()};
    const double seconds = best([&] {  // as layers are streamed, one after the other
      const Event now = device_.record();
      for (int i = 1; i < kFetches; ++i) device_.fetch(memory, weight, now);
      device_.join(device_.fetch(memory, weight, now));
    });
    return kFetches * static_cast<double>(kBusBytes) / seconds;
  }

 private:
  DevicePtr alloc(size_t n_bytes) {
    allocated_.push_back(device_.alloc(n_bytes));
    return allocated_.back();
  }

  double seconds_of(const Graph& graph, const StepShape& shape, const Beside& beside) {
    std::vector<DevicePtr> addresses;
    const std::vector<int32_t> ids(static_cast<size_t>(shape.n_tokens), 0);
    for (const Tensor& t : graph.tensors) {
      if (t.weight && device_.info().host_memory) {
        addresses.push_back(const_cast<std::byte*>(t.weight->data));  // only read
        continue;
      }
      addresses.push_back(alloc(t.weight ? device_.weight_bytes(*t.weight) : t.n_bytes()));
      if (t.weight) device_.upload(addresses.back(), *t.weight);
      if (t.role == Role::input) device_.copy_in(addresses.back(), ids.data(), t.n_bytes());
    }
    std::vector<int32_t> nodes;
    for (size_t i = 0; i < graph.nodes.size(); ++i) nodes.push_back(static_cast<int32_t>(i));
    const std::unique_ptr<Plan> plan = device_.compile(Segment{&graph, nodes, addresses, {}});
    return best([&] { device_.run(*plan, shape); }, beside);
  }

  template <class Fn>
  double best(const Fn& work, const Beside& beside = {}) {
    double shortest = INFINITY, spent = 0;
    for (int i = 0; i < 3 || (i < 50 && spent < kMostSeconds); ++i) {
      device_.wait(device_.record());
      if (beside.begin) beside.begin();
      const Clock::time_point start = Clock::now();
      work();
      device_.wait(device_.record());
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (beside.end) beside.end(seconds);
      if (i > 0) shortest = std::min(shortest, seconds);  // the first one warms up
      spent += seconds;
    }
    return shortest;
  }

  Device& device_;
  int64_t n_rows_;
  std::vector<std::byte> data_;
  std::vector<DevicePtr> allocated_;
};

// Keeps a device's bus busy with weights that are brought to it.
class BusLoad {
 public:
  explicit BusLoad(Device& device)
      : device_(device), data_(kBusBytes, std::byte{1}), memory_(device.alloc(kBusBytes)) {
    weight_ = {"beside", DType::F32, 1, 1, static_cast<int64_t>(kBusBytes / sizeof(float)), data_.data()};
  }
  ~BusLoad() {
    try {
      settle();
    } catch (const Error&) {  // there is nothing left to do about it
    }
    device_.free(memory_);
  }
  BusLoad(const BusLoad&) = delete;
  BusLoad& operator=(const BusLoad&) = delete;

  void settle() {
    if (n_ > 0) device_.join(fetched_);
    device_.wait(device_.record());
  }
  // Enough to last for so many seconds.
  void begin(double seconds, double bytes_per_s) {
    settle();
    start_ = Clock::now();
    const Event now = device_.record();
    n_ = static_cast<int>(seconds * bytes_per_s / static_cast<double>(kBusBytes)) + 1;
    for (int i = 0; i < n_; ++i) fetched_ = device_.fetch(memory_, weight_, now);
  }
  // Bytes per second in the first run_s seconds; `bytes_per_s` is what the bus does when nobody disturbs it,
  // as afterwards.
  double end(double run_s, double bytes_per_s) {
    settle();
    const double after_s = std::chrono::duration<double>(Clock::now() - start_).count() - run_s;
    const double n_bytes = n_ * static_cast<double>(kBusBytes) - std::max(0.0, after_s) * bytes_per_s;
    return std::clamp(n_bytes / run_s, 0.0, bytes_per_s);
  }

 private:
  Device& device_;
  std::vector<std::byte> data_;
  DevicePtr memory_;
  Weight weight_;
  Event fetched_ = 0;
  int n_ = 0;
  Clock::time_point start_;
};

constexpr double kGiga = 1e9;

// The reading and arithmetic speeds that good kernels reach, taken as 0.8 and 0.4 of what the makers' data
// sheets say of the memory and of dense products of half floats; and the bus, as 0.85 of PCIe 3, 4 or 5 with
// 16 lanes (T4: 3, L4: 4 with 8 lanes; Macs and the like have none and are not here).
constexpr KnownGpu gpu(std::string_view name, double gib, double gb_per_s, double tflops,
                       double bus_gb_per_s) {
  return {name, gib, {0.8 * gb_per_s * kGiga, 0.4 * tflops * 1e12, 0.85 * bus_gb_per_s * kGiga, 8e-6, 2e-6}};
}
constexpr KnownGpu kGpus[] = {
    gpu("t4", 15, 320, 65, 15.8),       gpu("l4", 22.5, 300, 121, 15.8),  gpu("rtx3060", 12, 360, 51, 31.5),
    gpu("rtx3090", 24, 936, 142, 31.5), gpu("rtx4060", 8, 272, 60, 15.8), gpu("rtx4090", 24, 1008, 165, 31.5),
    gpu("rtx5090", 32, 1792, 210, 63),  gpu("a10", 22.5, 600, 125, 31.5), gpu("a100", 80, 2039, 312, 31.5),
    gpu("l40s", 45, 864, 362, 31.5),    gpu("h100", 80, 3350, 989, 63),   gpu("h200", 141, 4800, 989, 63),
};

}  // namespace

DeviceRates measure_rates(Device& device) {
  const bool host = device.info().host_memory;
  const auto seconds = [&](int64_t n_rows, int64_t n_tokens, size_t n_matrices) {
    return Bench(device, n_rows).products(n_tokens, n_matrices);
  };
  // Matrices so large that starting an op is nothing beside reading them; differences leave out what comes
  // once.
  const int64_t n_rows = host ? kRows : 8 * kRows;
  const auto n_bytes = static_cast<double>(Bench::matrix_bytes(n_rows));
  const auto n = static_cast<size_t>(static_cast<double>(host ? kReadBytes : kGpuReadBytes) / n_bytes);
  const double read = (seconds(n_rows, 1, n) - seconds(n_rows, 1, 1)) / static_cast<double>(n - 1);
  const double batch = seconds(n_rows, kBatch, 2) - seconds(n_rows, kBatch, 1);
  DeviceRates rates;
  rates.read_bytes_per_s = n_bytes / std::max(read, 1e-9);
  rates.ops_per_s = 2.0 * kBatch * static_cast<double>(n_rows * kColumns) / std::max(batch, 1e-9);
  // Small matrices tell what starting costs.
  constexpr int64_t kFewRows = 64;
  constexpr size_t kMany = 33;
  const double one = seconds(kFewRows, 1, 1);
  const double more = (seconds(kFewRows, 1, kMany) - one) / (kMany - 1);
  rates.node_s =
      std::max(0.0, more - static_cast<double>(Bench::matrix_bytes(kFewRows)) / rates.read_bytes_per_s);
  rates.stage_s = std::max(0.0, one - more);
  rates.bus_bytes_per_s = host ? rates.read_bytes_per_s : Bench(device, kFewRows).bus_bytes_per_s();
  if (host) {
    ThreadPool pool(physical_core_count());
    rates.memory_bytes_per_s =
        std::max(rates.read_bytes_per_s,
                 measure_read_bandwidth(pool, bandwidth_buffer_bytes(device.memory_info().free_bytes)));
  }
  return rates;
}

double measure_shared_memory(Device& host, Device& device, const DeviceRates& rates) {
  const auto matrix_bytes = static_cast<double>(Bench::matrix_bytes(kRows));
  const auto n = static_cast<size_t>(static_cast<double>(kReadBytes) / matrix_bytes);
  Bench bench(host, kRows);
  const double alone = bench.products(1, n);
  BusLoad load(device);
  double most = 0;
  Beside beside;
  // Twice as much as it needs alone, for it needs longer.
  beside.begin = [&] { load.begin(2 * alone, rates.bus_bytes_per_s); };
  beside.end = [&](double run_s) {
    const double read = static_cast<double>(n) * matrix_bytes / run_s;
    most = std::max(most, read + load.end(run_s, rates.bus_bytes_per_s));
  };
  bench.products(1, n, beside);
  return most;
}

std::string RatesCache::usual_path() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value && *value ? std::string(value) : std::string();
  };
  if (const std::string cache = set("XDG_CACHE_HOME"); !cache.empty()) return cache + "/tandem/rates";
  const std::string home = set("HOME");
  return home.empty() ? "" : home + "/.cache/tandem/rates";
}

namespace {

// "read ops bus stage node memory<tab>host<tab>device"
std::string key_of(const std::string& device) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return std::string(host) + "\t" + printable(device, 400);
}

std::optional<DeviceRates> parse_rates(const std::string& text) {
  DeviceRates r;
  char rest;
  if (std::sscanf(text.c_str(), "%lf %lf %lf %lf %lf %lf%c", &r.read_bytes_per_s, &r.ops_per_s,
                  &r.bus_bytes_per_s, &r.stage_s, &r.node_s, &r.memory_bytes_per_s, &rest) != 6) {
    return std::nullopt;
  }
  const bool usable = r.read_bytes_per_s > 0 && r.ops_per_s > 0 && r.bus_bytes_per_s > 0 && r.stage_s >= 0 &&
                      r.node_s >= 0 && r.memory_bytes_per_s >= 0;
  const double sum =
      r.read_bytes_per_s + r.ops_per_s + r.bus_bytes_per_s + r.stage_s + r.node_s + r.memory_bytes_per_s;
  return usable && std::isfinite(sum) ? std::optional(r) : std::nullopt;
}

}  // namespace

std::optional<DeviceRates> RatesCache::find(const std::string& device) const {
  if (path_.empty()) return std::nullopt;
  std::ifstream file(path_);
  const std::string key = key_of(device);
  std::optional<DeviceRates> found;
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    if (tab == std::string::npos || line.compare(tab + 1, std::string::npos, key) != 0) continue;
    found = parse_rates(line.substr(0, tab));  // the last line counts
  }
  return found;
}

// One short append: processes that do it at the same time do not mix their lines.
void RatesCache::remember(const std::string& device, const DeviceRates& r) const {
  if (path_.empty()) return;
  for (size_t slash = path_.find('/', 1); slash != std::string::npos; slash = path_.find('/', slash + 1)) {
    mkdir(path_.substr(0, slash).c_str(), 0777);
  }
  const std::string line =
      format("%.6g %.6g %.6g %.6g %.6g %.6g\t%s\n", r.read_bytes_per_s, r.ops_per_s, r.bus_bytes_per_s,
             r.stage_s, r.node_s, r.memory_bytes_per_s, key_of(device).c_str());
  FILE* file = std::fopen(path_.c_str(), "ae");
  const bool written = file && std::fwrite(line.data(), 1, line.size(), file) == line.size();
  if (!(file && std::fclose(file) == 0 && written)) {
    log_verbose("%s: cannot be written, speeds will be measured again next time",
                printable(path_, 400).c_str());
  }
}

std::vector<DeviceRates> rates_of(std::span<Device* const> devices, const RatesCache& cache) {
  std::vector<DeviceRates> list;
  for (Device* device : devices) {
    const std::string name = device->info().name + ": " + device->info().description;
    std::optional<DeviceRates> rates = cache.find(name);
    if (!rates) {
      log_verbose("measuring the speed of %s", name.c_str());
      try {
        rates = measure_rates(*device);
        if (!device->info().host_memory) {
          rates->memory_bytes_per_s = measure_shared_memory(*devices[0], *device, *rates);
        }
      } catch (const Error& e) {
        if (e.code() != ErrorCode::out_of_memory) throw;
        return {};
      } catch (const std::bad_alloc&) {
        return {};
      }
      cache.remember(name, *rates);
    }
    list.push_back(*rates);
  }
  for (const DeviceRates& r : list) {
    list[0].memory_bytes_per_s = std::max(list[0].memory_bytes_per_s, r.memory_bytes_per_s);
  }
  return list;
}

std::span<const KnownGpu> known_gpus() {
  return kGpus;
}

const KnownGpu* find_gpu(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kGpus), std::end(kGpus), [&](const KnownGpu& g) { return g.name == name; });
  return found == std::end(kGpus) ? nullptr : found;
}

}  // namespace tandem
