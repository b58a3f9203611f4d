#include "support/sim_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace tandem::test {
namespace {

constexpr size_t kPage = 4096;

class SimExecutable final : public Executable {
 public:
  std::vector<DevicePtr> addresses;  // real ones
  std::vector<KvLayer> kv;
  std::unique_ptr<Executable> inner;
  Segment segment;  // the caller's, for its duration
  std::vector<std::pair<const std::byte*, size_t>> weights;
};

[[noreturn]] void fault(const char* what) {
  fprintf(stderr, "simulated device: %s\n", what);
  abort();
}

}  // namespace

SimDevice::SimDevice(const SimOptions& options)
    : options_(options),
      cpu_(cpu::make_cpu_device({.n_threads = options.n_threads,
                                 .n_threads_batch = options.n_threads,
                                 .isa = options.isa,
                                 .products = options.products})) {
  info_.name = options.name;
  info_.description = "simulated";
  info_.backend = "SIM";
  if (options.times.host_s) host_s_ = options.times.host_s;
  for (Order* order : {&runs_, &fetches_, &sums_})
    order->thread = std::thread([this, order] { work_off(*order); });
}

SimDevice::~SimDevice() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = is_released_ = true;
  }
  changed_.notify_all();
  runs_.thread.join();
  fetches_.thread.join();
  sums_.thread.join();
  if (!allocations_.empty()) fault("memory was not freed");
}

std::string SimDevice::why_unsupported(const Graph& graph, const Node& node) const {
  return cpu_->why_unsupported(graph, node);
}

MemoryInfo SimDevice::memory_info() const {
  return {options_.memory_bytes - used_bytes_, options_.memory_bytes};
}

DevicePtr SimDevice::alloc(size_t n_bytes) {
  if (n_allocs_++ == options_.fail_alloc || used_bytes_ + n_bytes > options_.memory_bytes) {
    throw_error(ErrorCode::out_of_memory, "{}: cannot allocate {} bytes ({} of {} are free)", info_.name,
                n_bytes, options_.memory_bytes - used_bytes_, options_.memory_bytes);
  }
  const size_t rounded = align_up(std::max<size_t>(n_bytes, 1), kPage);
  void* forbidden = mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (forbidden == MAP_FAILED || memory == MAP_FAILED) fault("mmap failed");
  memset(memory, 0xcd, n_bytes);  // to detect reads before a write
  const auto address = static_cast<DevicePtr>(forbidden);
  allocations_[address] = {static_cast<std::byte*>(memory), n_bytes};
  used_bytes_ += n_bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return address;
}

void SimDevice::free(DevicePtr address) {
  {
    std::unique_lock lock(mutex_);
    const auto is_done = [](const Order& order) { return order.n_done == order.n_issued; };
    changed_.wait(lock, [&] { return is_done(runs_) && is_done(fetches_) && is_done(sums_); });
  }
  reads_.clear();
  const auto it = allocations_.find(address);
  if (it == allocations_.end()) fault("free of an unknown address");
  const size_t rounded = align_up(std::max<size_t>(it->second.n_bytes, 1), kPage);
  munmap(it->second.real, rounded);
  munmap(address, rounded);
  used_bytes_ -= it->second.n_bytes;
  allocations_.erase(it);
}

std::byte* SimDevice::real(DevicePtr address, size_t n_bytes) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) fault("address of another device");
  --it;
  const auto offset = static_cast<size_t>(address - it->first);
  if (offset + n_bytes > it->second.n_bytes) fault("address out of bounds");
  return it->second.real + offset;
}

void SimDevice::enqueue(Order& order, double seconds, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    order.queue.push_back(std::move(work));
    ++order.n_issued;
    order.s = std::max(order.s, *host_s_) + seconds;
  }
  changed_.notify_all();
}

void SimDevice::block_until(Order& order, Event event) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return order.n_done >= event; });
}

void SimDevice::work_off(Order& order) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !order.queue.empty(); });
    if (order.queue.empty()) return;
    const std::function<void()> work = std::move(order.queue.front());
    order.queue.pop_front();
    // Nothing of what was issued before a failure was reported runs after it.
    const bool failed = failure_ != nullptr || order.n_done < order.n_lost;
    lock.unlock();
    std::exception_ptr failure;
    if (!failed) {
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    lock.lock();
    if (failure) failure_ = failure;
    ++order.n_done;
    changed_.notify_all();
  }
}

double SimDevice::bus_s(size_t n_bytes) const {
  const double rate = options_.times.bus_bytes_per_s;
  return rate > 0 ? static_cast<double>(n_bytes) / rate : 0;
}

void SimDevice::copy(void* to, const void* from, size_t n_bytes) {
  const double seconds =
      options_.copy_bytes_per_s > 0 ? static_cast<double>(n_bytes) / options_.copy_bytes_per_s : 0;
  // Skip sleeps shorter than the timer's resolution.
  if (seconds > 2e-5) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  memcpy(to, from, n_bytes);
}

void SimDevice::copy_in(DevicePtr to, const void* from, size_t n_bytes) {
  copy_in(runs_, to, from, n_bytes);
}
void SimDevice::copy_out(void* to, DevicePtr from, size_t n_bytes) {
  copy_out(runs_, to, from, n_bytes);
}

void SimDevice::copy_in(Order& order, DevicePtr to, const void* from, size_t n_bytes) {
  std::byte* target = real(to, n_bytes);
  const bool fails = n_copies_++ == options_.fail_copy;
  n_side_copies_ += &order == &sums_;
  copied_bytes_ += n_bytes;
  enqueue(order, bus_s(n_bytes), [this, target, from, n_bytes, fails] {
    if (fails) throw_error(ErrorCode::io, "{}: copying {} bytes to the device failed", info_.name, n_bytes);
    copy(target, from, n_bytes);
  });
}

void SimDevice::copy_out(Order& order, void* to, DevicePtr from, size_t n_bytes) {
  const std::byte* source = real(from, n_bytes);
  const bool fails = n_copies_++ == options_.fail_copy;
  n_side_copies_ += &order == &sums_;
  copied_bytes_ += n_bytes;
  enqueue(order, bus_s(n_bytes), [this, to, source, n_bytes, fails] {
    if (fails) throw_error(ErrorCode::io, "{}: copying {} bytes to the host failed", info_.name, n_bytes);
    copy(to, source, n_bytes);
  });
}

void SimDevice::copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) {
  std::byte* target = real(to, n_bytes);
  const std::byte* source = real(from, n_bytes);
  enqueue(runs_, 0, [target, source, n_bytes] { memmove(target, source, n_bytes); });
}

Event SimDevice::record() {
  return record(runs_);
}
void SimDevice::wait(Event event) {
  wait(runs_, event);
}
void SimDevice::wait_for_all() {
  for (Order* order : {&fetches_, &sums_, &runs_}) wait(*order, record(*order));
}
bool SimDevice::has_reached(Event event) {
  return has_reached(runs_, event);
}

Event SimDevice::record(Order& order) {
  const std::lock_guard lock(mutex_);
  order.at[order.n_issued] = order.s;
  return order.n_issued;
}

// `order` goes on once `other` has reached `event`.
void SimDevice::put_behind(Order& order, Order& other, Event event) {
  order.s = std::max(order.s, other.at[event]);
  enqueue(order, 0, [this, &other, event] { block_until(other, event); });
}

void SimDevice::wait(Order& order, Event event) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return order.n_done >= event; });
  *host_s_ = std::max(*host_s_, order.at[event]);
  while (&order == &runs_ && !reads_.empty() && reads_.front().run <= event) reads_.pop_front();
  if (!failure_) return;
  for (Order* lost : {&runs_, &fetches_, &sums_}) lost->n_lost = lost->n_issued;
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool SimDevice::has_reached(Order& order, Event event) {
  const std::lock_guard lock(mutex_);
  return order.n_done >= event;
}

void SimDevice::release() {
  {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
  }
  changed_.notify_all();
}

Event SimDevice::fetch(DevicePtr to, const Weight& weight, Event after) {
  const size_t n_bytes = weight.n_bytes();
  std::byte* target = real(to, n_bytes);
  check_unread(target, n_bytes, after);
  const bool fails = n_copies_++ == options_.fail_copy;
  copied_bytes_ += n_bytes;
  fetched_bytes_ += n_bytes;
  fetches_.s = std::max(fetches_.s, runs_.at[after]);
  const bool pinned = is_pinned(weight.data, n_bytes);
  pinned_fetched_ += pinned ? n_bytes : 0;
  const double rate = options_.times.pinned_bytes_per_s,
               seconds = pinned && rate > 0 ? static_cast<double>(n_bytes) / rate : bus_s(n_bytes);
  enqueue(fetches_, seconds, [this, target, from = weight.data, n_bytes, after, fails] {
    block_until(runs_, after);
    if (fails) throw_error(ErrorCode::io, "{}: fetching {} bytes to the device failed", info_.name, n_bytes);
    copy(target, from, n_bytes);
  });
  if (options_.times.traffic) options_.times.traffic->push_back({fetches_.s - seconds, fetches_.s});
  fetches_.at[fetches_.n_issued] = fetches_.s;
  return fetches_.n_issued;
}

bool SimDevice::is_pinned(const std::byte* begin, size_t n_bytes) const {
  return std::ranges::any_of(pinned_, [&](const auto& range) {
    return range.first <= begin && begin + n_bytes <= range.first + range.second;
  });
}

std::shared_ptr<const void> SimDevice::pin(std::span<const std::byte> bytes) {
  const int64_t n = n_pins_++;
  if (options_.fail_pin >= 0 && n >= options_.fail_pin) return nullptr;
  const auto pinned = pinned_.emplace(bytes.data(), bytes.size());
  return {static_cast<const void*>(bytes.data()), [this, pinned](const void*) { pinned_.erase(pinned); }};
}

void SimDevice::check_unread(const std::byte* to, size_t n_bytes, Event after) const {
  for (const Read& read : reads_) {
    if (read.run > after && to < read.begin + read.n_bytes && read.begin < to + n_bytes)
      fault("a fetch overwrites what a run reads");
  }
}

void SimDevice::join(Event fetched) {
  runs_.s = std::max(runs_.s, fetches_.at[fetched]);
  enqueue(runs_, 0, [this, fetched] { block_until(fetches_, fetched); });
}

std::unique_ptr<Executable> SimDevice::compile(const Segment& segment) {
  auto executable = std::make_unique<SimExecutable>();
  executable->addresses.assign(segment.addresses.size(), nullptr);
  for (size_t id = 0; id < segment.addresses.size(); ++id) {
    const DevicePtr address = segment.addresses[id];
    const Tensor& t = segment.graph->tensors[id];
    if (address) executable->addresses[id] = real(address, t.n_bytes());
  }
  for (const int32_t i : segment.nodes) {
    for (const TensorId id : inputs_of(segment.graph->nodes[static_cast<size_t>(i)].op)) {
      const Tensor& t = segment.graph->tensors[static_cast<size_t>(id)];
      if (t.weight && executable->addresses[static_cast<size_t>(id)])
        executable->weights.emplace_back(executable->addresses[static_cast<size_t>(id)], t.n_bytes());
    }
  }
  executable->kv.assign(segment.kv.begin(), segment.kv.end());
  for (KvLayer& layer : executable->kv) {
    if (!layer.k) continue;
    const auto rows = static_cast<size_t>(layer.n_blocks * layer.block_size * layer.n_head_kv);
    layer.k = real(layer.k, rows * row_bytes(layer.k_dtype, layer.head_dim_k));
    if (layer.v) layer.v = real(layer.v, rows * row_bytes(layer.v_dtype, layer.head_dim_v));
    const auto open = static_cast<size_t>(layer.n_open * layer.block_size * layer.n_head_kv);
    if (layer.k_open) layer.k_open = real(layer.k_open, open * row_bytes(DType::F16, layer.head_dim_k));
    if (layer.v_open) layer.v_open = real(layer.v_open, open * row_bytes(DType::F16, layer.head_dim_v));
    if (layer.open_table)
      layer.open_of = reinterpret_cast<const int32_t*>(
          real(layer.open_table, static_cast<size_t>(layer.n_blocks) * sizeof(int32_t)));
  }
  executable->segment = segment;
  executable->inner =
      cpu_->compile(Segment{segment.graph, segment.nodes, executable->addresses, executable->kv});
  return executable;
}

void SimDevice::run(Executable& executable, const StepShape& shape) {
  const SimExecutable& own = static_cast<SimExecutable&>(executable);
  Executable* inner = own.inner.get();
  const bool hangs = n_runs_ == options_.hang_run;
  const bool fails = n_runs_++ == options_.fail_run;
  const auto& run_s = options_.times.run_s;
  enqueue(runs_, run_s ? run_s(own.segment, shape) : 0, [this, inner, shape, fails, hangs] {
    if (hangs) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_released_; });
    }
    if (fails) throw_error(ErrorCode::out_of_memory, "{}: no memory for a run", info_.name);
    cpu_->run(*inner, shape);
  });
  for (const auto& [begin, n_bytes] : own.weights) reads_.push_back({runs_.n_issued, begin, n_bytes});
}

}  // namespace tandem::test
