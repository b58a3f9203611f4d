#include "emulated/overlap.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "emulated/emulator.h"

namespace emulator {
namespace {

constexpr size_t kPage = 4096, kWords = kPage / sizeof(uint32_t);

struct Pages {
  std::byte* begin;
  size_t n_bytes;
};

std::map<std::byte*, size_t> regions;  // begin -> bytes
std::vector<Pages> writable;
std::unordered_map<std::byte*, std::vector<uint32_t>> before;  // pages written by the kernel that runs
bool keeps_pages = false;
bool writes_are_wrong = false;
struct sigaction default_action;

std::byte* page_of(const void* at) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(at) / kPage * kPage);
}

bool is_watched(const std::byte* page) {
  auto after = regions.upper_bound(const_cast<std::byte*>(page));
  if (after == regions.begin()) return false;
  --after;
  return page < after->first + after->second;
}

void protect(Pages pages, int how) {
  if (mprotect(pages.begin, pages.n_bytes, how) != 0) fail("mprotect");
}

void on_fault(int, siginfo_t* info, void*) {
  std::byte* page = page_of(info->si_addr);
  if (!is_watched(page)) {  // a defect of the program: it ends at the same instruction
    sigaction(SIGSEGV, &default_action, nullptr);
    return;
  }
  if (writes_are_wrong) fail("a kernel writes to memory before it waits for the one before it");
  if (keeps_pages) {
    std::vector<uint32_t>& words = before[page];
    words.resize(kWords);
    std::memcpy(words.data(), page, kPage);
  }
  protect({page, kPage}, PROT_READ | PROT_WRITE);
  writable.push_back({page, kPage});
}

void catch_faults() {
  static const bool done = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGSEGV, &action, &default_action) == 0;
  }();
  if (!done) fail("sigaction");
}

// The pages of some words, neighbours together.
std::vector<Pages> pages_of(const Changes& runs) {
  std::vector<std::byte*> all;
  for (const Run& run : runs) {
    std::byte* const last = page_of(run.at + run.n - 1);
    for (std::byte* page = page_of(run.at); page <= last; page += kPage) all.push_back(page);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::vector<Pages> pages;
  for (std::byte* page : all) {
    if (!pages.empty() && pages.back().begin + pages.back().n_bytes == page) {
      pages.back().n_bytes += kPage;
    } else {
      pages.push_back({page, kPage});
    }
  }
  return pages;
}

void protect_all(const std::vector<Pages>& pages, int how) {
  for (const Pages& p : pages) protect(p, how);
}

}  // namespace

void watch(std::byte* pages, size_t n_bytes) {
  catch_faults();
  regions[pages] = n_bytes;
  writable.push_back({pages, n_bytes});
}

void unwatch(std::byte* pages) {
  const auto found = regions.find(pages);
  std::byte* const end = pages + found->second;
  std::erase_if(writable, [&](const Pages& p) { return p.begin >= pages && p.begin < end; });
  regions.erase(found);
}

void allow_writes(void* at, size_t n_bytes) {
  std::byte* const first = page_of(at);
  if (n_bytes == 0 || !is_watched(first)) return;
  const auto size = static_cast<size_t>(page_of(static_cast<std::byte*>(at) + n_bytes - 1) + kPage - first);
  protect({first, size}, PROT_READ | PROT_WRITE);
  writable.push_back({first, size});
}

void begin_changes() {
  for (const Pages& pages : writable) protect(pages, PROT_READ);
  writable.clear();
  before.clear();
  keeps_pages = true;
}

Changes end_changes() {
  keeps_pages = false;
  Changes changes;
  for (const auto& [page, old] : before) {
    auto* words = reinterpret_cast<uint32_t*>(page);
    for (size_t i = 0; i < kWords; ++i) {
      if (words[i] == old[i]) continue;
      if (!changes.empty() && changes.back().at + changes.back().n == words + i) {
        ++changes.back().n;
      } else {
        changes.push_back({words + i, 1});
      }
    }
  }
  before.clear();
  return changes;
}

void Hidden::hide(const std::vector<Changes>& changes) {
  runs_.clear();
  words_.clear();
  for (const Changes& c : changes) runs_.insert(runs_.end(), c.begin(), c.end());
  for (const Run& run : runs_) words_.insert(words_.end(), run.at, run.at + run.n);
  const std::vector<Pages> pages = pages_of(runs_);
  protect_all(pages, PROT_READ | PROT_WRITE);
  for (const Run& run : runs_) std::memset(run.at, 0xff, run.n * sizeof(uint32_t));
  protect_all(pages, PROT_READ);
  writes_are_wrong = true;
}

void Hidden::reveal() {
  writes_are_wrong = false;
  const std::vector<Pages> pages = pages_of(runs_);
  protect_all(pages, PROT_READ | PROT_WRITE);
  size_t at = 0;
  for (const Run& run : runs_) {
    std::copy_n(words_.begin() + static_cast<ptrdiff_t>(at), run.n, run.at);
    at += run.n;
  }
  protect_all(pages, PROT_READ);
  for (const auto& [page, old] : before) protect({page, kPage}, PROT_READ | PROT_WRITE);
}

}  // namespace emulator
