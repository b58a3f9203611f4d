#include "tools/batch/ranks.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>

#include "base/interrupt.h"
#include "base/log.h"
#include "engine/model_identity.h"
#include "pipeline/packet.h"
#include "tools/batch/input.h"
#include "tools/batch/replica.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/rank_setup.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

using namespace std::chrono_literals;

// Tags of messages to rank 0, and from it. One tag for all that go to it keeps them in order: a report is the last.
constexpr int kToQueue = 1, kLine = 2;
enum class Kind : uint8_t { ask, answer, report };
constexpr auto kPoll = 1ms;

constexpr int64_t kNoMoreLines = 0;  // as the number of a line

}  // namespace

// ---- Other ranks ----

RemoteQueue::Result RemoteQueue::next(InputLine& line, Wait wait, int64_t n_room) {
  if (ended_) return Result::end;
  if (n_room > n_asked_) {
    ranks_.send(0, kToQueue, Packet().put(Kind::ask).put(n_room - n_asked_).bytes());
    n_asked_ = n_room;
  }
  std::optional<RankMessage> message =
      wait == Wait::yes ? ranks_.receive(0, kLine) : ranks_.try_receive(0, kLine);
  if (!message) return Result::not_yet;
  Packet packet(*message);
  line.index = packet.get<int64_t>();
  if (line.index == kNoMoreLines) {
    ended_ = true;
    return Result::end;
  }
  line.too_long = packet.get<uint8_t>() != 0;
  line.text = packet.get_text();
  --n_asked_;
  return Result::line;
}

void RemoteQueue::answer(LineAnswer a) {
  ranks_.send(0, kToQueue,
              Packet().put(Kind::answer).put(a.index).put(a.n_generated).put(a.json).put(a.error).bytes());
}

void RemoteQueue::report(const RankReport& report) {
  ranks_.send(0, kToQueue, Packet().put(Kind::report).put(report).bytes());
}

// ---- Rank 0 ----

struct SharedQueue::State : LineQueue {
  State(Ranks& r, FileQueue& f)
      : ranks(r), files(f), wanted(r.size()), reports(r.size()), thread([this] { serve(); }) {}
  ~State() override { stop(); }
  void stop() {
    stopping = true;
    if (thread.joinable()) thread.join();
  }

  Result next(InputLine& line, Wait wait, int64_t n_room) override {
    for (;;) {
      {
        const std::lock_guard lock(mutex);
        rethrow();
        const Result result = files.next(line, Wait::no, n_room);
        if (result != Result::not_yet || wait == Wait::no || interrupted()) return result;
      }
      std::this_thread::sleep_for(kPoll);
    }
  }
  void answer(LineAnswer a) override {
    const std::lock_guard lock(mutex);
    rethrow();
    files.answer(std::move(a));
  }
  void show_progress(int64_t) override {
    const std::lock_guard lock(mutex);
    files.show_progress(files.n_generated());
  }

  void rethrow() {
    if (failure) std::rethrow_exception(failure);
  }

  // ---- The thread ----

  void serve() {
    try {
      while (!stopping && n_reports < ranks.size() - 1) {
        if (const auto message = ranks.try_receive(kAnyRank, kToQueue, kPoll)) take(*message);
        hand_out();
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  }

  void take(const RankMessage& message) {
    const auto from = static_cast<size_t>(message.from);
    Packet packet(message);
    const auto kind = packet.get<Kind>();
    if (kind == Kind::ask) {
      wanted[from] += packet.get<int64_t>();
    } else if (kind == Kind::report) {
      reports[from] = packet.get<RankReport>();
      ++n_reports;
    } else {
      LineAnswer a;
      a.index = packet.get<int64_t>();
      a.n_generated = packet.get<int64_t>();
      a.json = packet.get_text();
      a.error = packet.get_text();
      --n_open;
      const std::lock_guard lock(mutex);
      files.answer(std::move(a));
      files.show_progress(files.n_generated());
    }
  }

  // One line to each in turn.
  void hand_out() {
    InputLine line;
    for (size_t n_without = 0; n_without < wanted.size(); ++n_without) {
      next_rank = (next_rank + 1) % wanted.size();
      if (wanted[next_rank] == 0) continue;
      Result result;
      {
        const std::lock_guard lock(mutex);
        result = files.next(line, Wait::no, 1);
      }
      if (result == Result::not_yet) return;
      Packet packet;
      if (result == Result::end) {
        packet.put(kNoMoreLines);
        wanted[next_rank] = 0;
      } else {
        packet.put(line.index).put(static_cast<uint8_t>(line.too_long)).put(line.text);
        --wanted[next_rank];
        ++n_open;
        n_without = 0;
      }
      ranks.send(static_cast<int>(next_rank), kLine, packet.bytes());
    }
  }

  Ranks& ranks;
  std::mutex mutex;  // of files and failure
  FileQueue& files;
  std::exception_ptr failure;
  std::vector<int64_t> wanted;  // [size] lines that were asked for and not handed out
  std::vector<RankReport> reports;
  int n_reports = 0;
  std::atomic<int64_t> n_open{0};
  size_t next_rank = 0;
  std::atomic<bool> stopping{false};
  std::thread thread;  // the last: it uses the others
};

SharedQueue::SharedQueue(Ranks& ranks, FileQueue& files) : state_(std::make_unique<State>(ranks, files)) {}
SharedQueue::~SharedQueue() = default;

int64_t SharedQueue::n_open() const {
  return state_->n_open;
}

LineQueue& SharedQueue::local() {
  return *state_;
}

std::vector<RankReport> SharedQueue::finish(const RankReport& mine) {
  state_->thread.join();
  state_->rethrow();
  state_->reports[0] = mine;
  return state_->reports;
}

// ---- All ----

namespace {

BatchStats sum(const std::vector<RankReport>& reports) {
  BatchStats all;
  for (const RankReport& r : reports) {
    all.n_prompt += r.stats.n_prompt;
    all.n_reused += r.stats.n_reused;
    all.n_loaded += r.stats.n_loaded;
    all.n_generated += r.stats.n_generated;
    all.n_preempted += r.stats.n_preempted;
    all.n_recomputed += r.stats.n_recomputed;
    all.n_steps += r.stats.n_steps;
  }
  return all;
}

// "lines: rank 0 on node1: 120, rank 1 on node2: 118".
std::string lines_text(const Ranks& ranks, const std::vector<RankReport>& reports) {
  std::string text = "lines";
  for (size_t i = 0; i < reports.size(); ++i) {
    text += format("{} {}: {}", i == 0 ? ":" : ",", ranks.name_of(static_cast<int>(i)), reports[i].n_lines);
  }
  return text;
}

// The files of rank 0.
struct Files {
  explicit Files(const BatchOptions& o)
      : input(o.input, input_name(o)), answers(o.output), queue(o, input.get(), answers) {
    answers.log_done();
  }
  BatchInput input;
  AnswerFile answers;
  FileQueue queue;
};

void lead(MpiRanks& ranks, Replica& replica, FileQueue& files) {
  files.start();
  SharedQueue queue(ranks, files);
  replica.answer(queue.local());
  if (interrupted()) {
    files.report(replica.stats(), replica.n_open() + queue.n_open());
    throw Error(ErrorCode::interrupted, "");
  }
  const std::vector<RankReport> reports = queue.finish({replica.n_answered(), replica.stats()});
  files.report(sum(reports), 0);
  log_info("{}", lines_text(ranks, reports));
  replica.save();
  if (files.n_bad() > 0) throw ExitCode{static_cast<int>(ErrorCode::bad_file)};
}

void follow(MpiRanks& ranks, Replica& replica) {
  RemoteQueue queue(ranks);
  replica.answer(queue);
  if (interrupted()) throw Error(ErrorCode::interrupted, "");
  queue.report({replica.n_answered(), replica.stats()});
  replica.save();
}

void run_rank(BatchOptions& o, MpiRanks& ranks) {
  std::optional<Error> failure;
  std::unique_ptr<Files> files;
  Confinement confinement(o.sandbox);
  attempt(failure, [&] {
    note_no_effect(o);
    find_model_file(o);
    if (ranks.rank() == 0) files = std::make_unique<Files>(o);
    prepare_kv_store(o.kv_store, confinement);
    confinement.runs(o.engine).reads(o.chat_template).uses_mpi().begin();
  });
  ranks.start();
  agree(ranks, failure);
  agree_on(ranks, "the version of tandem", build_commit());
  const HostShare share = host_share(ranks);
  std::unique_ptr<Replica> replica;
  attempt(failure, [&] {
    share_host(share, o.engine);
    replica = std::make_unique<Replica>(o);
  });
  agree(ranks, failure);
  agree_on(ranks, "the model", fingerprint(replica->model()));
  log_info("{} {} on {} {} ({})", ranks.size(), ranks.size() == 1 ? "rank" : "ranks", share.n_hosts,
           share.n_hosts == 1 ? "machine" : "machines", ranks.library_version());
  if (ranks.rank() == 0) {
    lead(ranks, *replica, files->queue);
  } else {
    follow(ranks, *replica);
  }
}

}  // namespace

void check_rank_options(const BatchOptions& o) {
  if (o.shard && !o.shard->is_whole()) {
    throw_error(
        ErrorCode::usage,
        "--shard divides the lines over runs that know nothing of each other, --mpi over ranks: give one");
  }
  if (!o.shard && std::getenv("SLURM_ARRAY_TASK_ID") != nullptr) {
    throw_error(ErrorCode::usage,
                "the tasks of this Slurm job array would answer a shard each; with --mpi, give --shard off, "
                "in one task");
  }
  if (!o.expert_stats.empty()) {
    throw_error(ErrorCode::usage,
                "--expert-stats records the experts of one process: leave it out with --mpi");
  }
}

void batch_of_ranks(BatchOptions& options) {
  run_ranks(options.log, [&](MpiRanks& ranks) { run_rank(options, ranks); });
}

}  // namespace tandem::tools
