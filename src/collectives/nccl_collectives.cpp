#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "collectives/collectives.h"
#include "collectives/nccl_library.h"

namespace tandem {
namespace {

// Sums of parts of all devices; what else there is goes over host memory: joined columns, which the host needs next, and
// sums to which some device adds nothing.
class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const NcclFunctions& nccl, std::span<Device* const> devices, double limit_s)
      : Collectives(limit_s),
        nccl_(nccl),
        host_(make_host_collectives(limit_s, [this](std::string_view what) { check(what); })) {
    std::vector<int> numbers;
    for (Device* device : devices) {
      const std::optional<NativeQueue> queue = device->native_queue();
      if (!queue || queue->api != NativeQueue::Api::cuda) continue;
      place_of_[device] = numbers.size();
      numbers.push_back(queue->number);
    }
    const auto made = std::make_shared<std::vector<void*>>(numbers.size());
    const int result = call_within_limit("creates communicators", [&nccl, made, numbers] {
      return nccl.create(made->data(), static_cast<int>(numbers.size()), numbers.data());
    });
    if (result != 0)
      throw_error(ErrorCode::io, "NCCL creates no communicators: {}", nccl_.error_text(result));
    communicators_ = *made;
  }
  ~NcclCollectives() override {
    const auto end = is_lost() ? nccl_.abort : nccl_.destroy;
    end(communicators_.data(), static_cast<int>(communicators_.size()));
  }

  std::string_view name() const override { return "NCCL"; }

  void begin_all_reduce(std::span<const CollectivePart> parts, size_t n_rows) override {
    if (is_lost()) throw_error(ErrorCode::io, "all_reduce: NCCL has failed before");
    Begun begun{!is_for_nccl(parts), std::vector<Event>(parts.size(), 0)};
    if (begun.goes_over_host) {
      host_->begin_all_reduce(parts, n_rows);
      return begun_.push_back(std::move(begun));
    }
    Sum sum{nccl_, communicators_, {}, {}, {}, n_rows * parts.front().n_cols};
    sum.in.resize(parts.size());
    sum.out.resize(parts.size());
    sum.streams.resize(parts.size());
    for (const CollectivePart& p : parts) {
      const size_t i = place_of_.at(p.device);
      sum.in[i] = reinterpret_cast<const float*>(p.in);
      sum.out[i] = reinterpret_cast<float*>(p.out);
      sum.streams[i] = p.order().native_queue().value().stream;
    }
    // The first sum connects the devices, which may take forever.
    fail_if(has_connected_ ? sum() : call_within_limit("connects the GPUs", sum), "all_reduce");
    has_connected_ = true;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].queue) begun.events[i] = parts[i].queue->record();
    }
    begun_.push_back(std::move(begun));
  }

  std::span<const Event> end_all_reduce() override {
    TANDEM_CHECK(!begun_.empty());
    ended_ = std::move(begun_.front());
    begun_.pop_front();
    return ended_.goes_over_host ? host_->end_all_reduce() : ended_.events;
  }

  void abandon() override {
    begun_.clear();
    host_->abandon();
  }

  void all_gather(std::span<const CollectivePart> parts, size_t n_rows) override {
    host_->all_gather(parts, n_rows);
  }

  bool is_lost() const override { return Collectives::is_lost() || host_->is_lost(); }

 protected:
  void check(std::string_view what) override {
    fail_if(nccl_.async_error(communicators_.data(), static_cast<int>(communicators_.size())), what);
  }

 private:
  struct Begun {
    bool goes_over_host = false;
    std::vector<Event> events;  // [part]
  };
  struct Sum {
    const NcclFunctions& nccl;
    std::vector<void*> communicators;
    std::vector<const float*> in;
    std::vector<float*> out;
    std::vector<void*> streams;
    size_t n_floats;

    int operator()() const {
      return nccl.all_reduce(communicators.data(), static_cast<int>(communicators.size()), in.data(),
                             out.data(), n_floats, streams.data());
    }
  };

  bool is_for_nccl(std::span<const CollectivePart> parts) const {
    return parts.size() == communicators_.size() && std::ranges::all_of(parts, [&](const CollectivePart& p) {
             return p.in && p.out && place_of_.contains(p.device);
           });
  }

  // Communicators that have failed can only be aborted.
  void fail_if(int error, std::string_view what) {
    if (error == 0) return;
    set_lost();
    throw_error(ErrorCode::io, "{}: NCCL reports: {}", what, nccl_.error_text(error));
  }

  // Calls in a thread of its own, which is left behind if the call does not return. The call owns what it uses.
  int call_within_limit(std::string_view what, std::function<int()> call) {
    std::packaged_task<int()> task(std::move(call));
    std::future<int> result = task.get_future();
    std::thread thread(std::move(task));
    if (result.wait_for(std::chrono::duration<double>(limit_s())) == std::future_status::ready) {
      thread.join();
      return result.get();
    }
    thread.detach();
    set_lost();
    throw_error(ErrorCode::io, "NCCL {}, and has not returned within {} s", what, limit_s());
  }

  const NcclFunctions& nccl_;
  std::unique_ptr<Collectives> host_;
  std::map<Device*, size_t> place_of_;  // among the communicators
  std::vector<void*> communicators_;
  bool has_connected_ = false;
  std::deque<Begun> begun_;  // sums, by age
  Begun ended_;              // the last one that ended
};

}  // namespace

std::unique_ptr<Collectives> make_nccl_collectives(std::span<Device* const> devices, double limit_s) {
  return std::make_unique<NcclCollectives>(nccl_library(), devices, limit_s);
}

std::unique_ptr<Collectives> best_collectives(std::span<Device* const> devices) {
  const auto n_cuda = std::ranges::count_if(devices, [](Device* device) {
    const std::optional<NativeQueue> queue = device->native_queue();
    return queue && queue->api == NativeQueue::Api::cuda;
  });
  if (n_cuda < 2) return make_host_collectives();
  try {
    return make_nccl_collectives(devices);
  } catch (const Error& e) {
    log_warning("GPUs add over host memory: {}", e.message());
    return make_host_collectives();
  }
}

}  // namespace tandem
