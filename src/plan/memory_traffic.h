// Host memory shared by buses and cores: how long a read takes beside the others. A bus keeps its pace; the
// host gets the rest. One thread.
#pragma once

#include <vector>

namespace tandem {

class MemoryTraffic {
 public:
  explicit MemoryTraffic(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  // The time at which n_bytes are read, from `t` on and at most at `rate`.
  double finish(double t, double n_bytes, double rate) const;
  void add(double begin, double end, double n_bytes);
  void forget_until(double t);  // drops reads that ended before; no later question is about them

 private:
  struct Reader {
    double begin, end, bytes_per_s;
  };
  double bytes_per_s_;
  std::vector<Reader> readers_;
};

}  // namespace tandem
