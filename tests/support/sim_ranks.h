// Simulated ranks: threads of this process, each with the Ranks that a process has under MPI. For tests of what ranks do
// together: links of a set speed, calls that fail, ranks that hang or die. Needs no MPI.
//
// Time is simulated, whatever the machine's load: each rank has a clock, which compute() advances and messages carry along.
// A rank has one link for what it sends. An all-reduce and an all-gather are rings, a broadcast and a barrier binomial trees.
//
// Sums are in the order of ranks. Functions of all ranks that do not fit together (another function, another size) are
// reported, which MPI does not do.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ranks/ranks.h"

namespace tandem::test {

struct SimRankFailure {
  enum class Kind {
    error,  // the call throws Error(io)
    hang,   // it never returns, and the rank gives no sign of life
    death,  // the rank is gone
  };
  int rank = 0;
  int call = 0;  // the n-th call of this rank, from 0 (rank, size and name_of are none)
  Kind kind = Kind::error;
};

struct SimRankOptions {
  double bytes_per_s = 0;  // of each rank's link; 0: unlimited
  double latency_s = 0;    // of a message
  std::vector<SimRankFailure> failures;
  std::chrono::milliseconds silence{100};  // in real time: a rank that hangs is reported after it
};

// What became of a rank.
struct SimRankEnd {
  std::string error;          // the message of what it has thrown, "" if nothing
  double seconds = 0;         // on its clock
  uint64_t n_bytes_sent = 0;  // of a ring, as if all shares were as large as the largest
};

class SimWorld;

class SimRanks : public Ranks {
 public:
  SimRanks(SimWorld& world, int rank) : world_(world), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override;
  std::string name_of(int rank) const override;
  void send(int to, int tag, std::span<const std::byte> bytes) override;
  RankMessage receive(int from, int tag) override;
  std::optional<RankMessage> try_receive(int from, int tag, std::chrono::microseconds patience) override;
  void all_reduce(std::span<float> values) override;
  void all_gather(std::span<const std::byte> mine, std::span<const size_t> n_bytes,
                  std::span<std::byte> all) override;
  void broadcast(int root, std::span<std::byte> bytes) override;
  void barrier() override;
  [[noreturn]] void abort(const std::string& sentence, int exit_code) override;

  // Advances the clock, as work of this length does.
  void compute(double seconds);
  double seconds() const;

 private:
  SimWorld& world_;
  int rank_;
};

// Runs `body` on n ranks at once, and returns when all have ended. What one of them throws ends all.
std::vector<SimRankEnd> run_sim_ranks(int n, const SimRankOptions& options,
                                      const std::function<void(SimRanks&)>& body);

}  // namespace tandem::test
