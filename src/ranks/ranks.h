// Ranks: processes that work on one thing together, on one machine or on several, and how they talk to each other. Each
// has a number from 0. MpiRanks (mpi_ranks.h) is the one of the program; tests have ranks that are threads of one process
// (tests/support/sim_ranks.h).
//
// Errors. A rank that dies, fails or no longer answers ends all ranks with one sentence that names it; there is no way to
// go on without it. Every function throws Error(io) with this sentence, or never returns because the program ends. A wait
// has no time-out: what another rank computes may take hours. It ends when the other rank is gone, does not answer, or when
// all ranks wait for each other.
//
// One thread of a rank calls these functions at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tandem {

// Stands for every rank as the sender of a message.
inline constexpr int kAnyRank = -1;

struct RankMessage {
  int from = 0;
  int tag = 0;
  std::vector<std::byte> bytes;
};

class Ranks {
 public:
  virtual ~Ranks() = default;

  virtual int rank() const = 0;  // of this process, 0 .. size() - 1
  virtual int size() const = 0;
  // "rank 2 on node7", for messages.
  virtual std::string name_of(int rank) const = 0;

  // ---- From one to another. Messages with the same sender, receiver and tag arrive in the order in which they were sent.

  // Sends a copy of the bytes, at most kMaxBytes; does not wait until they are received. tag: 0 .. kMaxTag, chosen by the
  // caller to tell kinds of messages apart.
  virtual void send(int to, int tag, std::span<const std::byte> bytes) = 0;
  // Waits for the next message of this rank (or kAnyRank) with this tag.
  virtual RankMessage receive(int from, int tag) = 0;
  // The same, but waits no longer than `patience`; nullopt if none has come. Not a wait for another rank: it does not count
  // when all ranks wait for each other.
  virtual std::optional<RankMessage> try_receive(int from, int tag,
                                                 std::chrono::microseconds patience = {}) = 0;
  // Receives exactly as many bytes as there is room for. Throws Error(io) for a message of another length.
  void receive_into(int from, int tag, std::span<std::byte> bytes);

  // ---- Of all ranks together: all call the same functions in the same order, with the sizes below.

  // Replaces each value by the sum of this value over all ranks; the same bits on all of them. values: [n], the same n on
  // all ranks.
  virtual void all_reduce(std::span<float> values) = 0;
  // Puts what each rank has behind each other, in the order of ranks. mine: [n_bytes[rank()]]; n_bytes: [size()], the same on
  // all ranks; all: [sum of n_bytes].
  virtual void all_gather(std::span<const std::byte> mine, std::span<const size_t> n_bytes,
                          std::span<std::byte> all) = 0;
  // Gives all ranks the bytes of rank `root`. bytes: [n], the same n on all ranks.
  virtual void broadcast(int root, std::span<std::byte> bytes) = 0;
  // Waits until all ranks are here.
  virtual void barrier() = 0;

  // Ends all ranks with this sentence and this exit code. The sentence names a rank if need be; an empty one is not reported.
  [[noreturn]] virtual void abort(const std::string& sentence, int exit_code) = 0;

  static constexpr size_t kMaxBytes = INT32_MAX;
  static constexpr int kMaxTag = 1000;
};

// A message of text.
std::span<const std::byte> bytes_of(const std::string& text);
std::string text_of(const RankMessage& message);

// What a rank does, for messages: "all-reduce", "receive from rank 2".
struct RankWait {
  enum class Kind : int32_t { nothing, receive, all_reduce, all_gather, broadcast, barrier };
  Kind kind = Kind::nothing;
  int32_t from = kAnyRank;  // of a receive

  std::string text() const;
  bool operator==(const RankWait&) const = default;
};

// All ranks wait for each other, or for one that has ended: "ranks wait for each other: rank 0 in a barrier, rank 1 to receive
// from rank 0". waits: [size]; nullopt: has ended.
std::string deadlock_text(std::span<const std::optional<RankWait>> waits);

}  // namespace tandem
