#include "exec/fetch_queue.h"

#include "base/error.h"

namespace tandem {

void FetchQueue::begin(std::span<const StreamGroup> groups) {
  groups_ = groups;
  for (std::vector<size_t>& waiting : waiting_) waiting.clear();
}

void FetchQueue::read(size_t g) {
  if (groups_[g].device.is_host() || !slots_.holds(g)) slots_.start_read(g);
}

void FetchQueue::fetch(size_t g) {
  if (slots_.holds(g)) return;
  slots_.clear(g);
  std::vector<size_t>& waiting = waiting_[groups_[g].device.index()];
  if (groups_[g].on_disk || !waiting.empty()) {
    waiting.push_back(g);
  } else {
    slots_.start_fetch(g);
  }
}

void FetchQueue::start_ready() {
  for (std::vector<size_t>& waiting : waiting_) {
    while (!waiting.empty() && (!groups_[waiting.front()].on_disk || slots_.is_read(waiting.front()))) {
      start_first(waiting);
    }
  }
}

void FetchQueue::start(size_t g) {
  std::vector<size_t>& waiting = waiting_[groups_[g].device.index()];
  while (!slots_.holds(g)) {
    TANDEM_CHECK(!waiting.empty());
    start_first(waiting);
  }
}

void FetchQueue::wait_read(size_t g) {
  slots_.start_read(g);
  slots_.wait_read(g);
}

void FetchQueue::start_first(std::vector<size_t>& waiting) {
  const size_t first = waiting.front();
  waiting.erase(waiting.begin());
  if (groups_[first].on_disk) wait_read(first);
  slots_.start_fetch(first);
}

}  // namespace tandem
