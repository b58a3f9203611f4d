// `tandem batch --mpi`: every rank has a replica of the model. Rank 0 reads the input and writes the output; the ranks ask it
// for lines as they get room for them, so a fast rank answers more. The output is as one process writes it, and is continued
// in the same way.
#pragma once

#include <memory>
#include <vector>

#include "ranks/ranks.h"
#include "tools/batch/file_queue.h"
#include "tools/batch/options.h"

namespace tandem::tools {

// Throws Error(usage) for options that contradict --mpi.
void check_rank_options(const BatchOptions& options);
void batch_of_ranks(BatchOptions& options);

// What a rank has done, at the end.
struct RankReport {
  int64_t n_lines = 0;
  BatchStats stats;
};

// On ranks other than 0: the queue of rank 0. It asks for as many lines at once as there is room for.
class RemoteQueue : public LineQueue {
 public:
  explicit RemoteQueue(Ranks& ranks) : ranks_(ranks) {}

  Result next(InputLine& line, Wait wait, int64_t n_room) override;
  void answer(LineAnswer answer) override;
  void show_progress(int64_t) override {}
  // Call when the replica has answered all: rank 0 waits for it.
  void report(const RankReport& report);

 private:
  Ranks& ranks_;
  int64_t n_asked_ = 0;  // lines that have not come yet
  bool ended_ = false;
};

// On rank 0: hands out the lines of one queue to all ranks. A thread serves the others; this rank's replica takes lines
// from local().
class SharedQueue {
 public:
  // `ranks` is the thread's from now on, until finish().
  SharedQueue(Ranks& ranks, FileQueue& files);
  // Stops the thread, if finish() was not called.
  ~SharedQueue();

  LineQueue& local();
  int64_t n_open() const;  // lines that other ranks have and have not answered
  // Waits for the reports of all ranks. mine: of rank 0. Throws what the thread has thrown.
  std::vector<RankReport> finish(const RankReport& mine);  // [size]

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::tools
