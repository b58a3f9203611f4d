#include "support/sim_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace tandem::test {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = RankWait::Kind;

struct Died {};

struct Mail {
  RankMessage message;
  double arrival = 0;
};

struct RankState {
  bool ended = false;
  RankWait wait;
  std::function<bool()> ready;  // while it waits
  std::optional<Clock::time_point> hangs_since;
  int n_calls = 0;
  std::deque<Mail> inbox;
  double clock = 0, link_free = 0;
  uint64_t n_bytes_sent = 0;
};

// A function of all ranks, while they join it.
struct Round {
  Kind kind = Kind::nothing;
  int root = 0;
  size_t n = 0;                              // elements, the same on all ranks
  std::vector<std::vector<std::byte>> mine;  // [size]
  int n_joined = 0;
  double start = 0;
};

int n_tree_steps(int n) {
  int steps = 0;
  while ((1 << steps) < n) ++steps;
  return steps;
}

}  // namespace

class SimWorld {
 public:
  SimWorld(int n, const SimRankOptions& options) : options_(options), ranks_(static_cast<size_t>(n)) {
    reset_round();
  }

  int size() const { return static_cast<int>(ranks_.size()); }

  // Every call begins here.
  std::unique_lock<std::mutex> begin(int rank) {
    std::unique_lock lock(mutex_);
    throw_failure();
    const int call = state(rank).n_calls++;
    for (const SimRankFailure& f : options_.failures) {
      if (f.rank != rank || f.call != call) continue;
      if (f.kind == SimRankFailure::Kind::error)
        throw_error(ErrorCode::io, "rank {}: call {} fails", rank, call);
      if (f.kind == SimRankFailure::Kind::death) throw Died();
      hang(rank, lock);
    }
    return lock;
  }

  void send(int from, int to, int tag, std::span<const std::byte> bytes) {
    const auto lock = begin(from);
    TANDEM_CHECK(to >= 0 && to < size() && tag >= 0 && tag <= Ranks::kMaxTag &&
                 bytes.size() <= Ranks::kMaxBytes);
    RankState& sender = state(from);
    double arrival = sender.clock;
    if (to != from) {
      sender.link_free = std::max(sender.clock, sender.link_free) + transfer_s(bytes.size());
      sender.n_bytes_sent += bytes.size();
      arrival = sender.link_free + options_.latency_s;
    }
    state(to).inbox.push_back({{from, tag, {bytes.begin(), bytes.end()}}, arrival});
    news_.notify_all();
  }

  RankMessage receive(int rank, int from, int tag) {
    auto lock = begin(rank);
    std::optional<RankMessage> message;
    const auto find = [this, rank, from, tag] { return found(rank, from, tag) != state(rank).inbox.end(); };
    wait(lock, rank, {Kind::receive, from}, find);
    return take(rank, from, tag);
  }

  std::optional<RankMessage> try_receive(int rank, int from, int tag, std::chrono::microseconds patience) {
    auto lock = begin(rank);
    const auto here = [&] { return failure_ || found(rank, from, tag) != state(rank).inbox.end(); };
    news_.wait_for(lock, patience, here);
    throw_failure();
    if (!here()) return {};
    return take(rank, from, tag);
  }

  // Joins a function of all ranks. Returns what `finish` makes of what all have brought; the last one calls it.
  using Result = std::shared_ptr<const std::vector<std::byte>>;
  using Finish = std::function<std::vector<std::byte>(const Round&)>;
  Result join(int rank, Kind kind, int root, size_t n, std::span<const std::byte> mine, double seconds,
              const std::function<uint64_t(int rank)>& n_bytes_sent, const Finish& finish) {
    auto lock = begin(rank);
    if (round_.n_joined > 0 && (round_.kind != kind || round_.root != root || round_.n != n)) {
      const RankWait here{kind}, there{round_.kind};
      throw_error(ErrorCode::io, "ranks call different functions: rank {} is {}, others {}{}", rank,
                  here.text(), there.text(), round_.kind == kind ? " of another size" : "");
    }
    round_.kind = kind;
    round_.root = root;
    round_.n = n;
    round_.mine[static_cast<size_t>(rank)].assign(mine.begin(), mine.end());
    round_.start = std::max(round_.start, std::max(state(rank).clock, state(rank).link_free));
    if (++round_.n_joined < size()) {
      const uint64_t number = n_rounds_;
      wait(lock, rank, {kind}, [this, number] { return n_rounds_ > number; });
      return result_;  // nobody can finish the next one before this rank joins it
    }
    result_ = std::make_shared<const std::vector<std::byte>>(finish(round_));
    for (int i = 0; i < size(); ++i) {
      state(i).clock = state(i).link_free = round_.start + seconds;
      state(i).n_bytes_sent += n_bytes_sent(i);
    }
    ++n_rounds_;
    reset_round();
    news_.notify_all();
    return result_;
  }

  void run_rank(int rank, const std::function<void(SimRanks&)>& body, std::string& error) {
    std::string failure;
    try {
      SimRanks ranks(*this, rank);
      body(ranks);
    } catch (const Died&) {
      failure = error = format("rank {} has died", rank);
    } catch (const Error& e) {
      failure = error = e.what();
    }
    const std::lock_guard lock(mutex_);
    state(rank).ended = true;
    if (!failure.empty()) fail(failure);
    news_.notify_all();
  }

  void fail(const std::string& sentence) {
    if (!failure_) failure_ = sentence;
    news_.notify_all();
  }
  double transfer_s(size_t n_bytes) const {
    return options_.bytes_per_s > 0 ? static_cast<double>(n_bytes) / options_.bytes_per_s : 0;
  }
  double latency_s() const { return options_.latency_s; }
  RankState& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  std::mutex& mutex() { return mutex_; }

 private:
  void reset_round() {
    round_ = {};
    round_.mine.resize(ranks_.size());
  }
  void throw_failure() const {
    if (failure_) throw Error(ErrorCode::io, *failure_);
  }

  void wait(std::unique_lock<std::mutex>& lock, int rank, RankWait what, std::function<bool()> ready) {
    RankState& self = state(rank);
    self.wait = what;
    self.ready = std::move(ready);
    while (!self.ready()) {
      look_for_deadlock();
      look_for_silence();
      throw_failure();
      news_.wait_for(lock, std::chrono::milliseconds(10));
    }
    self.wait = {};
    self.ready = {};
    throw_failure();
  }

  void look_for_deadlock() {
    std::vector<std::optional<RankWait>> waits;
    for (const RankState& r : ranks_) {
      if (!r.ended && (r.wait.kind == Kind::nothing || r.ready())) return;  // computes, hangs or goes on
      waits.push_back(r.ended ? std::nullopt : std::optional(r.wait));
    }
    fail(deadlock_text(waits));
  }

  void look_for_silence() {
    for (int i = 0; i < size(); ++i) {
      const auto since = state(i).hangs_since;
      if (since && Clock::now() - *since > options_.silence) fail(format("rank {} hangs", i));
    }
  }

  void hang(int rank, std::unique_lock<std::mutex>& lock) {
    state(rank).hangs_since = Clock::now();
    news_.wait(lock, [&] {
      return failure_ ||
             std::ranges::all_of(ranks_, [&](const RankState& r) { return r.ended || r.hangs_since; });
    });
    throw_error(ErrorCode::io, "rank {} hangs", rank);
  }

  std::deque<Mail>::iterator found(int rank, int from, int tag) {
    return std::ranges::find_if(state(rank).inbox, [&](const Mail& m) {
      return (from == kAnyRank || m.message.from == from) && m.message.tag == tag;
    });
  }
  RankMessage take(int rank, int from, int tag) {
    RankState& self = state(rank);
    const auto mail = found(rank, from, tag);
    self.clock = std::max(self.clock, mail->arrival);
    RankMessage message = std::move(mail->message);
    self.inbox.erase(mail);
    return message;
  }

  SimRankOptions options_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<RankState> ranks_;
  std::optional<std::string> failure_;
  Round round_;
  uint64_t n_rounds_ = 0;
  Result result_;
};

int SimRanks::size() const {
  return world_.size();
}
std::string SimRanks::name_of(int rank) const {
  return format("rank {}", rank);
}
void SimRanks::send(int to, int tag, std::span<const std::byte> bytes) {
  world_.send(rank_, to, tag, bytes);
}
RankMessage SimRanks::receive(int from, int tag) {
  return world_.receive(rank_, from, tag);
}
std::optional<RankMessage> SimRanks::try_receive(int from, int tag, std::chrono::microseconds patience) {
  return world_.try_receive(rank_, from, tag, patience);
}

void SimRanks::all_reduce(std::span<float> values) {
  const size_t n = values.size();
  const auto n_ranks = static_cast<size_t>(size());
  const size_t share_bytes = (n + n_ranks - 1) / n_ranks * sizeof(float), n_steps = 2 * (n_ranks - 1);
  const auto sum = [n](const Round& round) {
    std::vector<float> sums(n, 0.0f);
    for (const auto& mine : round.mine) {
      for (size_t i = 0; i < n; ++i) {
        float value;
        memcpy(&value, mine.data() + i * sizeof value, sizeof value);
        sums[i] += value;
      }
    }
    const auto bytes = std::as_bytes(std::span(sums));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const double seconds = static_cast<double>(n_steps) * (world_.latency_s() + world_.transfer_s(share_bytes));
  const auto result = world_.join(
      rank_, RankWait::Kind::all_reduce, 0, n, std::as_bytes(values), seconds,
      [=](int) { return n_steps * share_bytes; }, sum);
  if (n > 0) memcpy(values.data(), result->data(), result->size());
}

void SimRanks::all_gather(std::span<const std::byte> mine, std::span<const size_t> n_bytes,
                          std::span<std::byte> all) {
  size_t n = 0, largest = 0;
  for (const size_t bytes : n_bytes) {
    n += bytes;
    largest = std::max(largest, bytes);
  }
  TANDEM_CHECK(n_bytes.size() == static_cast<size_t>(size()) && n == all.size() &&
               mine.size() == n_bytes[static_cast<size_t>(rank_)]);
  const size_t n_steps = n_bytes.size() - 1;
  const auto join = [](const Round& round) {
    std::vector<std::byte> bytes;
    for (const auto& share : round.mine) bytes.insert(bytes.end(), share.begin(), share.end());
    return bytes;
  };
  const double seconds = static_cast<double>(n_steps) * (world_.latency_s() + world_.transfer_s(largest));
  const auto result = world_.join(
      rank_, RankWait::Kind::all_gather, 0, n, mine, seconds, [=](int) { return n_steps * largest; }, join);
  TANDEM_CHECK(result->size() == all.size());
  if (n > 0) memcpy(all.data(), result->data(), n);
}

void SimRanks::broadcast(int root, std::span<std::byte> bytes) {
  TANDEM_CHECK(root >= 0 && root < size());
  const int n = size(), steps = n_tree_steps(n);
  const size_t n_bytes = bytes.size();
  // In step k, the first 2^k ranks behind the root send to the next 2^k.
  const auto sent = [=](int rank) {
    const int place = (rank - root + n) % n;
    uint64_t sum = 0;
    for (int k = 0; k < steps; ++k) sum += place < (1 << k) && place + (1 << k) < n ? n_bytes : 0;
    return sum;
  };
  const auto result =
      world_.join(rank_, RankWait::Kind::broadcast, root, n_bytes, bytes,
                  steps * (world_.latency_s() + world_.transfer_s(n_bytes)), sent,
                  [](const Round& round) { return round.mine[static_cast<size_t>(round.root)]; });
  if (n_bytes > 0) memcpy(bytes.data(), result->data(), n_bytes);
}

void SimRanks::barrier() {
  world_.join(
      rank_, RankWait::Kind::barrier, 0, 0, {}, n_tree_steps(size()) * world_.latency_s(),
      [](int) { return uint64_t{0}; }, [](const Round&) { return std::vector<std::byte>(); });
}

void SimRanks::abort(const std::string& sentence, int exit_code) {
  {
    const std::lock_guard lock(world_.mutex());
    world_.fail(sentence);
  }
  throw Error(static_cast<ErrorCode>(exit_code), sentence);
}

void SimRanks::compute(double seconds) {
  const std::lock_guard lock(world_.mutex());
  world_.state(rank_).clock += seconds;
}

double SimRanks::seconds() const {
  const std::lock_guard lock(world_.mutex());
  return world_.state(rank_).clock;
}

std::vector<SimRankEnd> run_sim_ranks(int n, const SimRankOptions& options,
                                      const std::function<void(SimRanks&)>& body) {
  SimWorld world(n, options);
  std::vector<SimRankEnd> ends(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i)
    threads.emplace_back([&, i] { world.run_rank(i, body, ends[static_cast<size_t>(i)].error); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < n; ++i) {
    SimRankEnd& end = ends[static_cast<size_t>(i)];
    end.seconds = world.state(i).clock;
    end.n_bytes_sent = world.state(i).n_bytes_sent;
  }
  return ends;
}

}  // namespace tandem::test
