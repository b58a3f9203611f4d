#include "ranks/mpi_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr int kSignOfLifeTag = Ranks::kMaxTag + 1;
constexpr auto kTellEvery = 500ms;
// A rank's thread may get no processor for this long without being suspected of anything.
constexpr auto kSettled = 3s;
constexpr size_t kMaxHostName = 64;

constexpr int kIoExit = static_cast<int>(ErrorCode::io);

bool matches(const RankMessage& message, int from, int tag) {
  return (from == kAnyRank || message.from == from) && message.tag == tag;
}

int size_for_mpi(size_t n) {
  TANDEM_CHECK(n <= Ranks::kMaxBytes);
  return static_cast<int>(n);
}

}  // namespace

MpiRanks::MpiRanks(const std::optional<Launch>& launch) : mpi_(mpi_library()) {
  if (const int error = mpi_.init(&rank_, &size_)) check(error, "start");
  if (launch && launch->size > 1 && size_ == 1) {
    throw_error(ErrorCode::io,
                "this is one of {} processes, but {} knows of none: tandem was built with another MPI than "
                "the one of this "
                "launcher",
                launch->size, library_version());
  }
  peers_.resize(static_cast<size_t>(size_));
}

MpiRanks::~MpiRanks() {
  if (!finished_) end_all("", kIoExit);
}

std::string MpiRanks::name_of(int rank) const {
  const auto i = static_cast<size_t>(rank);
  const std::lock_guard lock(hosts_mutex_);
  return i < hosts_.size() ? format("rank {} on {}", rank, hosts_[i]) : format("rank {}", rank);
}

std::string MpiRanks::library_version() const {
  char text[256];
  mpi_.library_version(text, sizeof text);
  return printable(std::string_view(text).substr(0, std::string_view(text).find_first_of(",\n")));
}

// ---- The thread ----

void MpiRanks::check(int error, const char* what) {
  if (error == 0) return;
  char text[256];
  mpi_.error_text(error, text, sizeof text);
  end_all(format("{}: MPI cannot {}: {}", name_of(rank_), what, printable(text, sizeof text)), kIoExit);
}

// Not by an exception: the thread that waits for a rank may be deep in a computation, and buffers are in use by MPI.
void MpiRanks::end_all(const std::string& sentence, int exit_code) {
  if (!sentence.empty()) fprintf(stderr, "tandem: error: %s\n", printable(sentence, sentence.size()).c_str());
  if (thread_.joinable() && std::this_thread::get_id() != thread_.get_id()) {
    const std::lock_guard lock(mutex_);
    exit_code_ = exit_code;
    work_.notify_all();
  } else {
    mpi_.abort(exit_code);
  }
  std::this_thread::sleep_for(2s);  // the thread does it; or it is held up in MPI
  std::_Exit(exit_code);
}

void MpiRanks::take_sign_of_life(const RankMessage& message) {
  Peer& peer = peers_[static_cast<size_t>(message.from)];
  SignOfLife sign;
  if (message.bytes.size() != sizeof sign)
    end_all(name_of(message.from) + " runs another version of tandem", kIoExit);
  memcpy(&sign, message.bytes.data(), sizeof sign);
  note_sign_of_life(peer, sign);
}

void MpiRanks::note_sign_of_life(Peer& peer, const SignOfLife& sign) {
  peer.said_at = Clock::now();
  if (!(sign == peer.last)) peer.same_since = peer.said_at;
  peer.last = sign;
}

bool MpiRanks::receive_messages() {
  bool moved = false;
  for (int found = 1; found;) {
    Transfer t;
    MpiHandle handle;
    int n = 0;
    check(mpi_.find_message(&found, &t.message.from, &t.message.tag, &n, &handle), "look for a message");
    if (!found) break;
    peers_[static_cast<size_t>(t.message.from)].heard = Clock::now();
    t.message.bytes.resize(static_cast<size_t>(n));
    receiving_.push_back(std::move(t));
    Transfer& taken = receiving_.back();
    check(mpi_.start_receive(taken.message.bytes.data(), n, &handle, &taken.request), "receive a message");
  }
  // In the order in which they were sent: a message waits for those before it.
  while (!receiving_.empty()) {
    Transfer& first = receiving_.front();
    int done = 0;
    check(mpi_.test(&first.request, &done), "receive a message");
    if (!done) break;
    moved = true;
    if (first.message.tag == kSignOfLifeTag) {
      take_sign_of_life(first.message);
    } else {
      const std::lock_guard lock(mutex_);
      inbox_.push_back(std::move(first.message));
      news_.notify_all();
    }
    receiving_.pop_front();
  }
  return moved;
}

bool MpiRanks::send_messages() {
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    for (; !outbox_.empty(); outbox_.pop_front()) sending_.push_back({std::move(outbox_.front())});
  }
  for (auto t = sending_.begin(); t != sending_.end();) {
    const RankMessage& m = t->message;  // `from` is where it goes
    if (!t->started) {
      check(mpi_.start_send(m.bytes.data(), size_for_mpi(m.bytes.size()), m.from, m.tag, &t->request),
            "send a message");
      t->started = moved = true;
    }
    int done = 0;
    check(mpi_.test(&t->request, &done), "send a message");
    if (done) moved = true;
    t = done ? sending_.erase(t) : std::next(t);
  }
  return moved;
}

bool MpiRanks::continue_operation() {
  Operation* operation;
  {
    const std::lock_guard lock(mutex_);
    operation = operation_;
  }
  if (operation == nullptr) return false;
  const bool begins = !operation->started;
  if (begins) check(operation->start(&operation->request), "begin an operation of all ranks");
  operation->started = true;
  int done = 0;
  check(mpi_.test(&operation->request, &done), "complete an operation of all ranks");
  if (!done) return begins;
  const std::lock_guard lock(mutex_);
  operation_ = nullptr;
  operation->done = true;
  news_.notify_all();
  return true;
}

// At most one on its way to each rank: one that does not take them gets no more.
void MpiRanks::give_signs_of_life() {
  const auto now = Clock::now();
  const bool due = now - told_ >= kTellEvery;
  SignOfLife self;
  if (due) {
    const std::lock_guard lock(mutex_);
    self = self_;
    self.n_moving = n_moving();
    told_ = now;
  }
  for (int to = 0; to < size_; ++to) {
    if (to == rank_) continue;
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (!peer.told) {
      int done = 0;
      check(mpi_.test(&peer.telling, &done), "send a sign of life");
      peer.told = done != 0;
    }
    if (!due || !peer.told) continue;
    peer.said = self;
    peer.told = false;
    check(mpi_.start_send(&peer.said, sizeof peer.said, to, kSignOfLifeTag, &peer.telling),
          "send a sign of life");
  }
}

void MpiRanks::look_for_silence() {
  const auto now = Clock::now();
  // When this thread itself was held up, the others' signs of life are still to be read.
  const auto held_up = now - looked_;
  looked_ = now;
  for (int i = 0; i < size_; ++i) {
    Peer& peer = peers_[static_cast<size_t>(i)];
    if (i == rank_ || !peer.heard) continue;
    if (held_up > 1s) *peer.heard += held_up;
    // One rank reports it: the others leave it the time to.
    if (now - *peer.heard < kSilence + 300ms * rank_) continue;
    end_all(format("{} has not answered for {} s: it hangs, or its machine is gone", name_of(i),
                   std::chrono::duration_cast<std::chrono::seconds>(now - *peer.heard).count()),
            kIoExit);
  }
}

// All ranks have said for a while that they wait in the same place, and nothing is on its way.
void MpiRanks::look_for_deadlock() {
  if (rank_ != 0) return;
  SignOfLife sign;
  {
    const std::lock_guard lock(mutex_);
    if (!blocked_) return;
    sign = self_;
    sign.n_moving = n_moving();
  }
  note_sign_of_life(peers_[0], sign);
  std::vector<std::optional<RankWait>> waits;
  for (const Peer& peer : peers_) {
    const bool waits_for_a_rank = peer.last.wait.kind != RankWait::Kind::nothing && peer.last.n_moving == 0;
    // One that says nothing more is a matter of look_for_silence().
    if (!waits_for_a_rank || peer.said_at - peer.same_since < kSettled) return;
    waits.emplace_back(peer.last.wait);
  }
  // An operation of all of them that all have joined is only slow.
  const auto kind = waits[0]->kind;
  const bool all_the_same = std::ranges::all_of(waits, [&](const auto& w) { return w->kind == kind; });
  if (all_the_same && kind != RankWait::Kind::receive) return;
  end_all(deadlock_text(waits), kIoExit);
}

bool MpiRanks::serve_once() {
  bool moved = receive_messages();
  moved |= send_messages();
  moved |= continue_operation();
  give_signs_of_life();
  look_for_silence();
  look_for_deadlock();
  return moved;
}

void MpiRanks::serve() {
  // MPI has nothing that one could wait for, so the thread looks: often while somebody waits, seldom otherwise.
  int n_idle = 0;
  for (;;) {
    n_idle = serve_once() ? 0 : n_idle + 1;
    std::unique_lock lock(mutex_);
    if (exit_code_) {
      lock.unlock();
      end_all("", *exit_code_);
    }
    if (stopping_ && outbox_.empty() && sending_.empty() && receiving_.empty()) break;
    if (n_idle < 50 && blocked_) {
      lock.unlock();
      std::this_thread::yield();
    } else {
      work_.wait_for(lock, blocked_ && n_idle < 2000 ? 50us : 1000us);
    }
  }
  // What was told last must have left before MPI ends.
  for (bool all_told = false; !all_told;) {
    all_told = true;
    for (int i = 0; i < size_; ++i) {
      Peer& peer = peers_[static_cast<size_t>(i)];
      int done = 1;
      if (i != rank_ && !peer.told) check(mpi_.test(&peer.telling, &done), "send a sign of life");
      if (done) peer.told = true;
      all_told &= done != 0;
    }
    receive_messages();
  }
}

// ---- The callers ----

void MpiRanks::start() {
  const auto now = Clock::now();
  for (Peer& peer : peers_) peer.same_since = peer.said_at = now;
  looked_ = now;
  thread_ = std::thread([this] { serve(); });
  std::vector<std::string> hosts = exchange_names();
  const std::lock_guard lock(hosts_mutex_);
  hosts_ = std::move(hosts);
}

std::vector<std::string> MpiRanks::exchange_names() {
  std::string mine = host_name().substr(0, kMaxHostName);
  mine.resize(kMaxHostName);
  std::string all(kMaxHostName * static_cast<size_t>(size_), ' ');
  const std::vector<size_t> n_bytes(static_cast<size_t>(size_), kMaxHostName);
  all_gather(bytes_of(mine), n_bytes, std::as_writable_bytes(std::span(all.data(), all.size())));
  std::vector<std::string> names;
  for (size_t i = 0; i < static_cast<size_t>(size_); ++i)
    names.push_back(printable(std::string(all.substr(i * kMaxHostName).c_str()), kMaxHostName));
  return names;
}

void MpiRanks::finish() {
  barrier();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  thread_.join();
  finished_ = true;
  mpi_.finalize();
}

void MpiRanks::send(int to, int tag, std::span<const std::byte> bytes) {
  TANDEM_CHECK(to >= 0 && to < size_ && tag >= 0 && tag <= kMaxTag && bytes.size() <= kMaxBytes);
  RankMessage message{to, tag, {bytes.begin(), bytes.end()}};
  const std::lock_guard lock(mutex_);
  if (to == rank_) {
    inbox_.push_back(std::move(message));
    news_.notify_all();
  } else {
    outbox_.push_back(std::move(message));
    work_.notify_all();
  }
}

std::optional<RankMessage> MpiRanks::take_from_inbox(int from, int tag) {
  const auto found =
      std::ranges::find_if(inbox_, [&](const RankMessage& m) { return matches(m, from, tag); });
  if (found == inbox_.end()) return {};
  RankMessage message = std::move(*found);
  inbox_.erase(found);
  return message;
}

RankMessage MpiRanks::receive(int from, int tag) {
  std::unique_lock lock(mutex_);
  std::optional<RankMessage> message = take_from_inbox(from, tag);
  if (message) return std::move(*message);
  ++self_.n_calls;
  self_.wait = {RankWait::Kind::receive, from};
  blocked_ = true;
  work_.notify_all();
  news_.wait(lock, [&] { return (message = take_from_inbox(from, tag)).has_value(); });
  blocked_ = false;
  self_.wait = {};
  return std::move(*message);
}

std::optional<RankMessage> MpiRanks::try_receive(int from, int tag, std::chrono::microseconds patience) {
  std::unique_lock lock(mutex_);
  std::optional<RankMessage> message;
  const auto taken = [&] { return (message = take_from_inbox(from, tag)).has_value(); };
  if (patience.count() <= 0) {
    (void)taken();
  } else {
    news_.wait_for(lock, patience, taken);
  }
  return message;
}

void MpiRanks::run(RankWait::Kind kind, std::function<int(MpiHandle*)> start) {
  Operation operation{std::move(start)};
  std::unique_lock lock(mutex_);
  ++self_.n_calls;
  self_.wait = {kind};
  blocked_ = true;
  operation_ = &operation;
  work_.notify_all();
  news_.wait(lock, [&] { return operation.done; });
  blocked_ = false;
  self_.wait = {};
}

void MpiRanks::all_reduce(std::span<float> values) {
  const int n = size_for_mpi(values.size());
  run(RankWait::Kind::all_reduce,
      [&, n](MpiHandle* request) { return mpi_.start_all_reduce(values.data(), n, request); });
}

void MpiRanks::all_gather(std::span<const std::byte> mine, std::span<const size_t> n_bytes,
                          std::span<std::byte> all) {
  std::vector<int> counts, offsets;
  size_t n = 0;
  for (const size_t bytes : n_bytes) {
    counts.push_back(size_for_mpi(bytes));
    offsets.push_back(size_for_mpi(n));
    n += bytes;
  }
  TANDEM_CHECK(n_bytes.size() == static_cast<size_t>(size_) && n == all.size() &&
               mine.size() == n_bytes[static_cast<size_t>(rank_)]);
  run(RankWait::Kind::all_gather, [&](MpiHandle* request) {
    return mpi_.start_all_gather(mine.data(), size_for_mpi(mine.size()), all.data(), counts.data(),
                                 offsets.data(), request);
  });
}

void MpiRanks::broadcast(int root, std::span<std::byte> bytes) {
  TANDEM_CHECK(root >= 0 && root < size_);
  const int n = size_for_mpi(bytes.size());
  run(RankWait::Kind::broadcast,
      [&, n](MpiHandle* request) { return mpi_.start_broadcast(bytes.data(), n, root, request); });
}

void MpiRanks::barrier() {
  run(RankWait::Kind::barrier, [&](MpiHandle* request) { return mpi_.start_barrier(request); });
}

void MpiRanks::abort(const std::string& sentence, int exit_code) {
  end_all(sentence, exit_code);
}

}  // namespace tandem
