// Replica: a model with its runtime that answers the lines of a queue, many at once. Every rank has one.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/batcher.h"
#include "tools/batch/line_queue.h"
#include "tools/batch/options.h"
#include "tools/batch/request.h"
#include "tools/expert_stats.h"

namespace tandem::tools {

class Replica {
 public:
  // Loads the model. Refers to the options, whose context it sets. Throws Error.
  explicit Replica(BatchOptions& options);
  ~Replica();

  // Answers lines until the queue ends, or until a Ctrl-C.
  void answer(LineQueue& queue);
  // Writes what was recorded, and says what was used of the store and of experts.
  void save() const;

  const Model& model() const { return *model_; }
  const BatchStats& stats() const { return batcher_->stats(); }
  int64_t n_answered() const { return n_answered_; }  // lines, bad ones included
  int64_t n_open() const { return batcher_->n_open(); }

 private:
  using Json = nlohmann::ordered_json;
  void read_lines(LineQueue& queue);
  void begin(const InputLine& line, LineQueue& queue);
  Json answer_to(int64_t index);
  LineAnswer finish(BatchAnswer a);
  LineAnswer error_answer(int64_t index, const Error& error);

  BatchOptions& options_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Model> model_;
  std::optional<ExpertStats> expert_stats_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<BlockStore> store_;  // null: nothing is kept
  std::unique_ptr<RequestParser> parser_;
  std::unique_ptr<Batcher> batcher_;
  std::unordered_map<int64_t, Json> ids_;  // of open requests
  bool at_end_ = false;
  int64_t n_answered_ = 0;
};

}  // namespace tandem::tools
