#include "plan/rates.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "base/background_load.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/sanitized.h"
#include "base/thread_pool.h"
#include "plan/bandwidth.h"
#include "plan/op_bench.h"
#include "plan/peer_rates.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

// Square matrices so large that starting an op is nothing beside reading them.
// A sanitizer's checks make the speed meaningless, and take minutes.
constexpr int64_t kHostSize = kSanitized ? 256 : 4096;
constexpr OpBench::Matrix kHostMatrix{DType::Q4_K, kHostSize}, kGpuMatrix{DType::Q4_K, 2 * kHostSize};
constexpr OpBench::Matrix kFloats{DType::F16, kHostSize};
constexpr size_t kGpuBytes = size_t{kSanitized ? 8 : 340}
                             << 20;  // of those that are read one after the other
constexpr int64_t kBatch = kSanitized ? 16 : 512;
constexpr int kSmallOps = 33;
// Attention of a decoding step, and of a piece of a prompt.
constexpr OpBench::Attention kSingle{.n_tokens = 1, .n_past = kSanitized ? 255 : 4095};
constexpr OpBench::Attention kPrompt{.n_tokens = kSanitized ? 8 : 256, .n_past = kSanitized ? 64 : 768};
constexpr size_t kBusBytes = size_t{64} << 20;
constexpr int kFetches = 4;
constexpr double kDisturbing = 0.1;  // share of the CPUs that others take

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

// As layers are streamed, one after the other; and then from page-locked memory, if the device has that.
void measure_bus(Device& device, DeviceRates& rates) {
  OpBench bench(device);
  const std::vector<std::byte> host(kBusBytes, std::byte{1});
  const DevicePtr memory = bench.alloc(kBusBytes);
  const Weight weight{"bus", DType::F32, 1, 1, static_cast<int64_t>(kBusBytes / sizeof(float)), host.data()};
  const auto bytes_per_s = [&] {
    const double seconds = bench.seconds_of([&] {
      const Event now = device.record();
      for (int i = 1; i < kFetches; ++i) device.fetch(memory, weight, now);
      device.join(device.fetch(memory, weight, now));
    });
    return kFetches * static_cast<double>(kBusBytes) / seconds;
  };
  rates.bus_bytes_per_s = bytes_per_s();
  if (const auto pinned = device.pin(host)) rates.pinned_bytes_per_s = std::max(rates.bus_bytes_per_s, bytes_per_s());
}

// Seconds of each of n, where the difference to one leaves out what comes once.
template <class Fn>
double each(size_t n, const Fn& seconds_of) {
  const double all = seconds_of(n), one = seconds_of(1);
  return std::max((all - one) / static_cast<double>(n - 1), 0.5 * all / static_cast<double>(n));
}

// Of a product with one row.
double single_seconds(OpBench& bench, const OpBench::Matrix& matrix, size_t n_matrices) {
  return each(n_matrices, [&](size_t n) { return bench.products(matrix, 1, n); });
}

// Of each row of many, of computing only: where reading the matrix comes on top, both are in the time of one
// row.
double row_seconds(OpBench& bench, const OpBench::Matrix& matrix, double single, bool adds_up) {
  const double batch = each(2, [&](size_t n) { return bench.products(matrix, kBatch, n); });
  return adds_up ? std::max(batch - single, 0.5 * batch) / (kBatch - 1) : batch / kBatch;
}

// Operations per second in steps through so many layers.
double attention_rate(OpBench& bench, OpBench::Attention step, size_t n_layers) {
  const double seconds = each(n_layers, [&](size_t n) {
    step.n_layers = static_cast<int>(n);
    return bench.attention(step);
  });
  return OpBench::attention_work(step).n_ops / seconds;
}

// How many things to go through so that caches hold little of them; two where memory is scarce.
size_t count_of(Device& device, size_t thing_bytes) {
  if (kSanitized) return 2;
  const size_t wanted =
      device.info().host_memory ? bandwidth_buffer_bytes(device.memory_info().free_bytes) : kGpuBytes;
  return std::max<size_t>(2, wanted / thing_bytes);
}

}  // namespace

DeviceRates measure_rates(Device& device) {
  const bool host = device.info().host_memory;
  const OpBench::Matrix matrix = host ? kHostMatrix : kGpuMatrix;
  OpBench bench(device);
  DeviceRates rates;
  const double single = single_seconds(bench, matrix, count_of(device, matrix.n_bytes()));
  const double computing = row_seconds(bench, matrix, single, host);
  const double reading = host ? std::max(single - computing, 0.1 * single) : single;
  rates.read_bytes_per_s = static_cast<double>(matrix.n_bytes()) / reading;
  rates.ops_per_s = matrix.n_ops() / computing;
  const double single_of_floats = static_cast<double>(kFloats.n_bytes()) / rates.read_bytes_per_s;
  rates.float_ops_per_s = kFloats.n_ops() / row_seconds(bench, kFloats, single_of_floats, host);
  const double alone = bench.small_ops(1);
  rates.node_s = std::max(0.0, (bench.small_ops(kSmallOps) - alone) / (kSmallOps - 1));
  rates.stage_s = std::max(0.0, alone - rates.node_s);
  rates.attention_ops_per_s = attention_rate(bench, kPrompt, 3);
  const auto cache_bytes = static_cast<size_t>(OpBench::attention_work(kSingle).n_bytes);
  rates.single_attention_ops_per_s = attention_rate(bench, kSingle, count_of(device, 2 * cache_bytes));
  if (!host) measure_bus(device, rates);
  if (host) {
    rates.bus_bytes_per_s = rates.read_bytes_per_s;
    ThreadPool pool(physical_core_count());
    rates.memory_bytes_per_s =
        std::max(rates.read_bytes_per_s,
                 measure_read_bandwidth(pool, bandwidth_buffer_bytes(device.memory_info().free_bytes)));
  }
  return rates;
}

double measure_shared_memory(Device& host, Device& device, const DeviceRates& rates) {
  OpBench bench(host);
  const size_t n = count_of(host, kHostMatrix.n_bytes());
  const double n_bytes = static_cast<double>(n * kHostMatrix.n_bytes());
  const double alone = bench.products(kHostMatrix, 1, n);
  BusLoad load(device);
  double most = 0;
  Overlap overlap;
  // Twice as much as it needs alone, for it needs longer.
  overlap.begin = [&] { load.begin(2 * alone, rates.bus_bytes_per_s); };
  overlap.end = [&](double run_s) {
    most = std::max(most, n_bytes / run_s + load.end(run_s, rates.bus_bytes_per_s));
  };
  bench.products(kHostMatrix, 1, n, overlap);
  return most;
}

namespace {

// Of devices[d], now; and remembered.
DeviceRates measured_rates(std::span<Device* const> devices, size_t d, const std::string& name,
                           const RatesCache& cache) {
  log_verbose("measuring the speed of {}", name);
  StatusLine line;
  line.show(format("measuring the speed of {}", name));
  const BackgroundLoad others;
  DeviceRates rates = measure_rates(*devices[d]);
  if (d > 0) rates.memory_bytes_per_s = measure_shared_memory(*devices[0], *devices[d], rates);
  const bool disturbed = others.share() > kDisturbing;
  if (disturbed) log_verbose("the machine was busy: the speed of {} will be measured again", name);
  cache.remember(name, rates, disturbed ? Measured::disturbed : Measured::quietly);
  return rates;
}

}  // namespace

std::vector<DeviceRates> rates_of(std::span<Device* const> devices, const RatesCache& cache) try {
  std::vector<DeviceRates> list;
  for (size_t d = 0; d < devices.size(); ++d) {
    const std::string name = devices[d]->info().name + ": " + devices[d]->info().description;
    const std::optional<DeviceRates> known = cache.find(name);
    list.push_back(known ? *known : measured_rates(devices, d, name, cache));
    list.back().in_turn = d == 0;
  }
  for (const DeviceRates& r : list) {
    list[0].memory_bytes_per_s = std::max(list[0].memory_bytes_per_s, r.memory_bytes_per_s);
  }
  add_peer_rates(devices, cache, list);
  return list;
} catch (const Error& e) {
  if (e.code() != ErrorCode::out_of_memory) throw;
  return {};
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace tandem
