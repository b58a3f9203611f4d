#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/collectives.h"

namespace tandem {
namespace {

class HostCollectives final : public Collectives {
 public:
  HostCollectives(double limit_s, CollectivesCheck check) : Collectives(limit_s), check_(std::move(check)) {}

  std::string_view name() const override { return "host memory"; }

  void begin_all_reduce(std::span<const CollectivePart> parts, size_t n_rows) override {
    summed_.assign(parts.begin(), parts.end());
    const auto has_columns = [](const CollectivePart& p) { return p.in != nullptr; };
    const auto with = std::ranges::find_if(parts, has_columns);
    TANDEM_CHECK(with != parts.end());
    n_summed_ = n_rows * with->n_cols;
    bring(parts, n_rows, "all_reduce");
  }

  void end_all_reduce() override {
    const std::span<const CollectivePart> parts = summed_;
    const size_t n = n_summed_;
    bool first = true;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].in) continue;
      const float* from = arrived(parts, i, "all_reduce");
      if (first) std::copy_n(from, n, result_.begin());
      for (size_t j = 0; !first && j < n; ++j) result_[j] += from[j];
      first = false;
    }
    send(parts, n);
  }

  void all_gather(std::span<const CollectivePart> parts, size_t n_rows) override {
    bring(parts, n_rows, "all_gather");
    const size_t n_cols = total_columns(parts);
    size_t column = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].in) continue;
      const float* from = arrived(parts, i, "all_gather");
      for (size_t row = 0; row < n_rows; ++row) {
        std::copy_n(from + row * parts[i].n_cols, parts[i].n_cols,
                    result_.begin() + static_cast<ptrdiff_t>(row * n_cols + column));
      }
      column += parts[i].n_cols;
    }
    send(parts, n_rows * n_cols);
  }

 protected:
  void check(std::string_view what) override {
    if (check_) check_(what);
  }

 private:
  struct Brought {
    std::vector<float> rows;
    Event event = 0;
  };

  struct Read {
    Device* device;
    WorkQueue* queue;
    Event event;
  };

  static size_t total_columns(std::span<const CollectivePart> parts) {
    size_t n = 0;
    for (const CollectivePart& p : parts) n += p.in ? p.n_cols : 0;
    return n;
  }

  // Starts the copies to host memory, once nobody reads the last result.
  void bring(std::span<const CollectivePart> parts, size_t n_rows, const char* what) {
    if (is_lost()) throw_error(ErrorCode::io, "{}: a device has not answered before", what);
    brought_.resize(std::max(brought_.size(), parts.size()));
    for (size_t i = 0; i < parts.size(); ++i) {
      const CollectivePart& p = parts[i];
      if (!p.in || p.device->info().host_memory) continue;
      std::vector<float>& rows = brought_[i].rows;
      rows.resize(std::max(rows.size(), n_rows * p.n_cols));
      p.order().copy_out(rows.data(), p.in, n_rows * p.n_cols * sizeof(float));
      brought_[i].event = p.order().record();
    }
    for (const Read& r : reads_result_) wait(*r.device, *r.queue, r.event, what);
    reads_result_.clear();
    result_.resize(std::max(result_.size(), n_rows * total_columns(parts)));
  }

  const float* arrived(std::span<const CollectivePart> parts, size_t i, const char* what) {
    const CollectivePart& p = parts[i];
    if (p.device->info().host_memory) return reinterpret_cast<const float*>(p.in);
    wait(*p.device, p.order(), brought_[i].event, what);
    return brought_[i].rows.data();
  }

  void send(std::span<const CollectivePart> parts, size_t n) {
    for (const CollectivePart& p : parts) {
      if (!p.out) continue;
      if (p.device->info().host_memory) {
        std::memcpy(p.out, result_.data(), n * sizeof(float));
        continue;
      }
      p.order().copy_in(p.out, result_.data(), n * sizeof(float));
      reads_result_.push_back({p.device, &p.order(), p.order().record()});
    }
  }

  const CollectivesCheck check_;
  std::vector<Brought> brought_;  // [part]
  std::vector<float> result_;
  std::vector<Read> reads_result_;      // when each has read it
  std::vector<CollectivePart> summed_;  // between the calls of a sum
  size_t n_summed_ = 0;                 // floats
};

}  // namespace

std::unique_ptr<Collectives> make_host_collectives(double limit_s, CollectivesCheck check) {
  return std::make_unique<HostCollectives>(limit_s, std::move(check));
}

}  // namespace tandem
