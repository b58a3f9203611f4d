// MpiRanks: the processes that mpirun or srun has started, by MPI.
//
// A thread of its own makes all calls of MPI. It receives messages as they come, so that sending never waits for the other
// side, and twice a second it tells the other ranks that this one is alive, whatever the rank computes meanwhile. A rank of
// which nothing was heard for kSilence has died with its machine, or was stopped: the ranks end, and the sentence names it.
// (Of a process that dies alone, watch_rank() and the launcher tell at once.) A rank that computes is not told from one that
// computes for ever.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "ranks/launch.h"
#include "ranks/mpi_library.h"
#include "ranks/ranks.h"

namespace tandem {

class MpiRanks : public Ranks {
 public:
  static constexpr std::chrono::seconds kSilence{10};

  // Loads and starts MPI; a program that no launcher has started is one rank of one. Throws Error(io) if MPI is missing, or
  // is not the one of the launcher (which then every process takes for the only one).
  explicit MpiRanks(const std::optional<Launch>& launch);
  // Ends all ranks, as abort() does, unless finish() was called.
  ~MpiRanks() override;
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  // Starts the thread; call before any other function, and after the program is confined, so that the thread is too. All
  // ranks call it.
  void start();
  // Waits for all ranks and ends MPI.
  void finish();

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name_of(int rank) const override;
  std::string library_version() const;

  void send(int to, int tag, std::span<const std::byte> bytes) override;
  RankMessage receive(int from, int tag) override;
  std::optional<RankMessage> try_receive(int from, int tag, std::chrono::microseconds patience) override;
  void all_reduce(std::span<float> values) override;
  void all_gather(std::span<const std::byte> mine, std::span<const size_t> n_bytes,
                  std::span<std::byte> all) override;
  void broadcast(int root, std::span<std::byte> bytes) override;
  void barrier() override;
  [[noreturn]] void abort(const std::string& sentence, int exit_code) override;

 private:
  using Clock = std::chrono::steady_clock;
  // What a rank says of itself: what it waits for, how many calls it has begun, whether bytes are on their way.
  struct SignOfLife {
    RankWait wait;
    uint64_t n_calls = 0, n_moving = 0;
    bool operator==(const SignOfLife&) const = default;
  };
  struct Peer {
    std::optional<Clock::time_point> heard;  // the last message; nullopt: it has not started yet
    SignOfLife last;                         // what it said
    Clock::time_point same_since, said_at;   // when it first and when it last said so
    bool told = true;                        // our last sign of life has left
    MpiHandle telling{};
    SignOfLife said{};
  };
  struct Transfer {  // bytes that MPI reads or writes
    RankMessage message;
    MpiHandle request{};
    bool started = false;
  };
  struct Operation {  // of all ranks together, which the thread starts and completes
    std::function<int(MpiHandle*)> start;
    MpiHandle request{};
    bool started = false, done = false;
  };

  void serve();
  bool serve_once();
  bool receive_messages();
  bool send_messages();
  bool continue_operation();
  void give_signs_of_life();
  void look_for_silence();
  void look_for_deadlock();
  void take_sign_of_life(const RankMessage& message);
  static void note_sign_of_life(Peer& peer, const SignOfLife& sign);
  void check(int error, const char* what);
  [[noreturn]] void end_all(const std::string& sentence, int exit_code);
  uint64_t n_moving() const { return outbox_.size() + sending_.size() + receiving_.size(); }
  void run(RankWait::Kind kind, std::function<int(MpiHandle*)> start);
  std::optional<RankMessage> take_from_inbox(int from, int tag);
  std::vector<std::string> exchange_names();

  const MpiFunctions& mpi_;
  int rank_ = 0, size_ = 1;
  std::thread thread_;
  bool finished_ = false;

  mutable std::mutex hosts_mutex_;
  std::vector<std::string> hosts_;  // [size]

  std::mutex mutex_;  // of what follows
  std::condition_variable work_, news_;
  SignOfLife self_;
  std::deque<RankMessage> inbox_, outbox_;
  Operation* operation_ = nullptr;
  bool stopping_ = false, blocked_ = false;
  std::optional<int> exit_code_;  // the thread shall end all ranks with it

  // Of the thread alone.
  std::list<Transfer> receiving_, sending_;
  std::vector<Peer> peers_;  // [size]
  Clock::time_point looked_{}, told_{};
};

}  // namespace tandem
