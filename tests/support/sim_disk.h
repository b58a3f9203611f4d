// A disk whose reads take simulated time and can be made to fail. The data comes from the files, through the
// program's own reader; until a read is complete, its target holds garbage.
#pragma once

#include <cstring>
#include <map>

#include "base/disk_reader.h"
#include "base/error.h"

namespace tandem::test {

struct SimDiskOptions {
  double bytes_per_s = 0;      // 0: reads take no time
  double* host_s = nullptr;    // the host's clock, as in SimTimes; null: no simulated time
  int64_t* n_reads = nullptr;  // counts the reads, possibly of several disks; null: not counted
  int64_t fail_read = -1;      // the n-th read (from 0) throws Error(io) at its wait
  DiskOptions reader;
};

class SimDisk final : public DiskReader {
 public:
  SimDisk(std::vector<DiskFile> files, const SimDiskOptions& options)
      : options_(options), reader_(open_disk_reader(std::move(files), options.reader)) {}

  Ticket start(std::span<const DiskRead> reads) override {
    Read read;
    for (const DiskRead& r : reads) {
      memset(r.to, 0xcd, r.n_bytes);
      if (options_.bytes_per_s > 0) read.s += static_cast<double>(r.n_bytes) / options_.bytes_per_s;
    }
    if (options_.host_s) read.s = free_s_ = std::max(free_s_, *options_.host_s) + read.s;
    if (options_.n_reads) read.fails = (*options_.n_reads)++ == options_.fail_read;
    const Ticket ticket = reader_->start(reads);
    reads_[ticket] = read;
    return ticket;
  }
  bool is_done(Ticket ticket) override {
    return options_.host_s ? reads_.at(ticket).s <= *options_.host_s : reader_->is_done(ticket);
  }
  void wait(Ticket ticket) override {
    const Read read = reads_.at(ticket);
    reads_.erase(ticket);
    if (options_.host_s) *options_.host_s = std::max(*options_.host_s, read.s);
    reader_->wait(ticket);
    if (read.fails) throw_error(ErrorCode::io, "the simulated disk failed");
  }

 private:
  struct Read {
    double s = 0;  // simulated: when it is complete
    bool fails = false;
  };
  SimDiskOptions options_;
  std::unique_ptr<DiskReader> reader_;
  std::map<Ticket, Read> reads_;
  double free_s_ = 0;
};

}  // namespace tandem::test
