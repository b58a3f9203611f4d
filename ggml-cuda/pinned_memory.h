// PinnedMemory: ranges of host memory that are page-locked where they are (cudaHostRegister), so that the copy engine reads them
// without the CPU's help. Of the process, because the driver page-locks a page once, for all GPUs; ranges may overlap, and a
// page stays locked until nobody who asked for it needs it.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

namespace tandem::cuda {

// Pages that were locked together. Unlocked when the last one who holds it lets go, after all copies from it that were issued
// while it was held.
class PinnedPages {
 public:
  PinnedPages(std::byte* begin, std::byte* end) : begin_(begin), end_(end) {}
  ~PinnedPages();
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

  const std::byte* begin() const { return begin_; }
  const std::byte* end() const { return end_; }

 private:
  friend class PinnedMemory;
  std::byte* begin_;
  std::byte* end_;
  std::set<int> devices_;  // that have copied from it, or may; PinnedMemory's mutex guards it
};

class PinnedMemory {
 public:
  using List = std::vector<std::shared_ptr<PinnedPages>>;

  static PinnedMemory& of_process();

  // Locks the pages that the bytes lie in; anonymous memory, not a mapped file. Returns who holds them; empty if the driver
  // refuses, or somebody lets go of them at this moment.
  List pin(std::span<const std::byte> bytes);
  // Returns the locked pages that hold these bytes, in order, for copies to a device (the driver's number) that are issued while
  // the list lives; empty if not all of the bytes are locked.
  List holding(std::span<const std::byte> bytes, int device);

 private:
  std::mutex mutex_;
  struct Range {
    std::byte* end;
    std::weak_ptr<PinnedPages> pages;  // expired: about to be unlocked
  };
  std::map<std::byte*, Range> ranges_;  // by begin; none overlap
  // The first range that ends behind `at`.
  std::map<std::byte*, Range>::iterator first_behind(const std::byte* at);

  friend class PinnedPages;
  void forget(const PinnedPages& pages);
};

}  // namespace tandem::cuda
