// A disk whose reads end in random order, one after some polls and another at once, and which remembers what it has read.
// Until a read ends, its target holds garbage.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "base/disk_reader.h"

namespace tandem::test {

// What a disk has read, also after it is gone.
struct DiskLog {
  std::vector<const std::byte*> begins;  // of all reads, in order
  uint64_t n_bytes = 0;
};

class MoodyDisk final : public DiskReader {
 public:
  MoodyDisk(std::vector<DiskFile> files, uint64_t seed, DiskLog* log)
      : reader_(open_disk_reader(std::move(files))), random_(seed), log_(log) {}

  Ticket start(std::span<const DiskRead> reads) override {
    for (const DiskRead& read : reads) {
      memset(read.to, 0xcd, read.n_bytes);
      log_->begins.push_back(read.from);
      log_->n_bytes += read.n_bytes;
    }
    reads_[++last_] = {{reads.begin(), reads.end()}, random_() % 4};
    return last_;
  }
  bool is_done(Ticket ticket) override {
    Read& read = reads_.at(ticket);
    if (read.n_polls > 0) {
      --read.n_polls;
      return false;
    }
    complete(read);
    return true;
  }
  void wait(Ticket ticket) override {
    complete(reads_.at(ticket));
    reads_.erase(ticket);
  }

 private:
  struct Read {
    std::vector<DiskRead> reads;
    uint64_t n_polls = 0;
  };
  void complete(Read& read) {
    if (!read.reads.empty()) reader_->wait(reader_->start(read.reads));
    read.reads.clear();
  }

  std::unique_ptr<DiskReader> reader_;
  std::mt19937_64 random_;
  DiskLog* log_;
  std::map<Ticket, Read> reads_;
  Ticket last_ = 0;
};

}  // namespace tandem::test
