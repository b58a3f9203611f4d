#include <algorithm>
#include <map>
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
      : Collectives(limit_s), nccl_(nccl), host_(make_host_collectives(limit_s)) {
    std::vector<int> numbers;
    for (Device* device : devices) {
      const std::optional<NativeQueue> queue = device->native_queue();
      if (!queue || queue->api != NativeQueue::Api::cuda) continue;
      place_of_[device] = numbers.size();
      numbers.push_back(queue->number);
    }
    communicators_.resize(numbers.size());
    check(nccl_.create(communicators_.data(), static_cast<int>(numbers.size()), numbers.data()));
  }
  ~NcclCollectives() override {
    const auto end = is_lost() ? nccl_.abort : nccl_.destroy;
    end(communicators_.data(), static_cast<int>(communicators_.size()));
  }

  std::string_view name() const override { return "NCCL"; }

  void all_reduce(std::span<const CollectivePart> parts, size_t n_rows) override {
    if (!is_for_nccl(parts)) return host_->all_reduce(parts, n_rows);
    std::vector<const float*> in(parts.size());
    std::vector<float*> out(parts.size());
    std::vector<void*> streams(parts.size());
    for (const CollectivePart& p : parts) {
      const size_t i = place_of_.at(p.device);
      in[i] = reinterpret_cast<const float*>(p.in);
      out[i] = reinterpret_cast<float*>(p.out);
      streams[i] = p.device->native_queue()->stream;
    }
    check(nccl_.all_reduce(communicators_.data(), static_cast<int>(parts.size()), in.data(), out.data(),
                           n_rows * parts.front().n_cols, streams.data()));
  }

  void all_gather(std::span<const CollectivePart> parts, size_t n_rows) override {
    host_->all_gather(parts, n_rows);
  }

  bool is_lost() const override { return Collectives::is_lost() || host_->is_lost(); }

 private:
  bool is_for_nccl(std::span<const CollectivePart> parts) const {
    return parts.size() == communicators_.size() && std::ranges::all_of(parts, [&](const CollectivePart& p) {
             return p.in && p.out && place_of_.contains(p.device);
           });
  }
  void check(int result) const {
    if (result != 0) throw_error(ErrorCode::io, "NCCL: {}", nccl_.error_text(result));
  }

  const NcclFunctions& nccl_;
  std::unique_ptr<Collectives> host_;
  std::map<Device*, size_t> place_of_;  // among the communicators
  std::vector<void*> communicators_;
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
