#include "plan/disk_rate.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "plan/pages.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPiece = size_t{32} << 20;
constexpr size_t kPieces = 2;  // memory for so many: one is under way while another is waited for
constexpr double kMaxSeconds = 0.4;

// "disk 259:1": what its rate is remembered by.
std::string disk_name(const DiskFile& file) {
  struct stat status;
  if (stat(file.path.c_str(), &status) != 0) return "";
  return format("disk {}:{}", major(status.st_dev), minor(status.st_dev));
}

}  // namespace

double measure_disk_rate(const std::vector<DiskFile>& files) {
  const auto largest = std::max_element(files.begin(), files.end(), [](const DiskFile& a, const DiskFile& b) {
    return a.mapped.size() < b.mapped.size();
  });
  if (largest == files.end() || largest->mapped.size() < kPiece * 2) return 0;
  const std::unique_ptr<DiskReader> reader = open_disk_reader({*largest});
  const Pages memory(kPiece * kPieces);
  const size_t n = largest->mapped.size() / kPiece;
  std::vector<DiskReader::Ticket> tickets;
  size_t n_waited = 0;
  // The first piece wakes the disk up and is not counted.
  Clock::time_point begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (size_t i = 0; i < n && (i < 2 || seconds() < kMaxSeconds); ++i) {
    const DiskRead read{largest->mapped.data() + i * kPiece, kPiece, memory.data() + i % kPieces * kPiece};
    tickets.push_back(reader->start({&read, 1}));
    if (tickets.size() - n_waited < kPieces) continue;
    reader->wait(tickets[n_waited++]);
    if (n_waited == 1) begin = Clock::now();
  }
  while (n_waited < tickets.size()) reader->wait(tickets[n_waited++]);
  return static_cast<double>((n_waited - 1) * kPiece) / std::max(seconds(), 1e-9);
}

double disk_rate_of(const std::vector<DiskFile>& files, const RatesCache& cache) {
  const std::string name = disk_name(files.front());
  // A line of the cache is that of a device, of which a disk has one number.
  if (const auto known = cache.find(name)) return known->read_bytes_per_s;
  log_verbose("measuring the speed of {}", name);
  const double rate = measure_disk_rate(files);
  if (rate > 0) cache.remember(name, {rate, 1, rate, 0, 0});
  return rate;
}

}  // namespace tandem
