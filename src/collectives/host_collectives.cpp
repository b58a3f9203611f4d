#include <algorithm>
#include <cstring>
#include <deque>
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
    const auto has_columns = [](const CollectivePart& p) { return p.in != nullptr; };
    const auto with = std::ranges::find_if(parts, has_columns);
    TANDEM_CHECK(with != parts.end());
    const bool is_beside = std::ranges::any_of(parts, [](const CollectivePart& p) { return p.queue; });
    const size_t i = next_buffer(is_beside);
    bring(buffers_[i], parts, n_rows, n_rows * with->n_cols, "all_reduce");
    begun_.push_back(i);
  }

  std::span<const Event> end_all_reduce() override {
    TANDEM_CHECK(!begun_.empty());
    Buffer& buffer = buffers_[begun_.front()];
    begun_.pop_front();
    std::vector<float>& result = buffer.result;
    const size_t n = buffer.n_result;
    bool first = true;
    for (size_t i = 0; i < buffer.parts.size(); ++i) {
      if (!buffer.parts[i].in) continue;
      const float* from = arrived(buffer, i, "all_reduce");
      if (first) std::copy_n(from, n, result.begin());
      for (size_t j = 0; !first && j < n; ++j) result[j] += from[j];
      first = false;
    }
    send(buffer);
    return sent_;
  }

  void abandon() override { begun_.clear(); }

  void all_gather(std::span<const CollectivePart> parts, size_t n_rows) override {
    const size_t n_cols = total_columns(parts);
    Buffer& buffer = buffers_[next_buffer(false)];
    bring(buffer, parts, n_rows, n_rows * n_cols, "all_gather");
    size_t column = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].in) continue;
      const float* from = arrived(buffer, i, "all_gather");
      for (size_t row = 0; row < n_rows; ++row) {
        std::copy_n(from + row * parts[i].n_cols, parts[i].n_cols,
                    buffer.result.begin() + static_cast<ptrdiff_t>(row * n_cols + column));
      }
      column += parts[i].n_cols;
    }
    send(buffer);
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
  // What one of them has in host memory.
  struct Buffer {
    std::vector<CollectivePart> parts;
    std::vector<Brought> brought;  // [part]
    std::vector<float> result;
    size_t n_result = 0;      // floats
    std::vector<Read> reads;  // when each has read the result
  };

  static size_t total_columns(std::span<const CollectivePart> parts) {
    size_t n = 0;
    for (const CollectivePart& p : parts) n += p.in ? p.n_cols : 0;
    return n;
  }

  // Sums beside runs take turns in so many buffers that the host need not wait until devices have read one: a queue whose part of
  // a sum is there has read all that it was sent before it began to bring that.
  size_t next_buffer(bool is_beside) {
    const size_t n_needed = is_beside || !begun_.empty() ? 2 * (begun_.size() + 1) : 1;
    if (buffers_.size() < n_needed) buffers_.resize(n_needed);
    last_ = n_needed == 1 ? 0 : (last_ + 1) % buffers_.size();
    TANDEM_CHECK(std::ranges::find(begun_, last_) == begun_.end());
    return last_;
  }

  // Starts the copies to host memory, once nobody reads the buffer's last result.
  void bring(Buffer& buffer, std::span<const CollectivePart> parts, size_t n_rows, size_t n_result,
             const char* what) {
    if (is_lost()) throw_error(ErrorCode::io, "{}: a device has not answered before", what);
    buffer.parts.assign(parts.begin(), parts.end());
    buffer.brought.resize(std::max(buffer.brought.size(), parts.size()));
    for (size_t i = 0; i < parts.size(); ++i) {
      const CollectivePart& p = parts[i];
      if (!p.in || p.device->info().host_memory) continue;
      std::vector<float>& rows = buffer.brought[i].rows;
      rows.resize(std::max(rows.size(), n_rows * p.n_cols));
      p.order().copy_out(rows.data(), p.in, n_rows * p.n_cols * sizeof(float));
      buffer.brought[i].event = p.order().record();
    }
    for (const Read& r : buffer.reads) wait(*r.device, *r.queue, r.event, what);
    buffer.reads.clear();
    buffer.n_result = n_result;
    buffer.result.resize(std::max(buffer.result.size(), n_result));
  }

  const float* arrived(const Buffer& buffer, size_t i, const char* what) {
    const CollectivePart& p = buffer.parts[i];
    if (p.device->info().host_memory) return reinterpret_cast<const float*>(p.in);
    wait(*p.device, p.order(), buffer.brought[i].event, what);
    return buffer.brought[i].rows.data();
  }

  void send(Buffer& buffer) {
    sent_.assign(buffer.parts.size(), 0);
    for (size_t i = 0; i < buffer.parts.size(); ++i) {
      const CollectivePart& p = buffer.parts[i];
      if (!p.out) continue;
      if (p.device->info().host_memory) {
        std::memcpy(p.out, buffer.result.data(), buffer.n_result * sizeof(float));
        continue;
      }
      p.order().copy_in(p.out, buffer.result.data(), buffer.n_result * sizeof(float));
      sent_[i] = p.order().record();
      buffer.reads.push_back({p.device, &p.order(), sent_[i]});
    }
  }

  const CollectivesCheck check_;
  std::vector<Buffer> buffers_;
  size_t last_ = 0;           // buffer that was used
  std::deque<size_t> begun_;  // buffers of sums, by age
  std::vector<Event> sent_;   // [part] of the last result
};

}  // namespace

std::unique_ptr<Collectives> make_host_collectives(double limit_s, CollectivesCheck check) {
  return std::make_unique<HostCollectives>(limit_s, std::move(check));
}

}  // namespace tandem
