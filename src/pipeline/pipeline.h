// Pipeline: a model's layers over ranks. Rank r has stage r. Rank 0 leads: it has the session, and each step of its runtime
// makes the other ranks do the same step with theirs. A step's activations go from rank to rank, and the last one sends the
// logits to rank 0, which waits for them only where somebody asks for them: while it reads a prompt, it is steps ahead.
//
// The sequences of all ranks are cut back and extended alike, so a step's message is enough for them to follow: the length
// before the step, and its tokens.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "engine/runtime.h"
#include "engine/step_relay.h"
#include "pipeline/rank_link.h"
#include "pipeline/stage_times.h"

namespace tandem {

class Pipeline final : public StepRelay, RemoteLogits {
 public:
  // `ranks` outlives it.
  explicit Pipeline(Ranks& ranks);

  // On ranks other than 0: makes the steps of rank 0 with this rank's runtime until it calls finish().
  void follow(Runtime& runtime);
  // On rank 0, after the last step.
  void finish();

  // This rank's. With those of all ranks: all call it.
  StageTimes times() const;
  std::vector<StageTimes> all_times();
  // On rank 0: calls `show` after steps, with what live_text() says of all ranks since the last time, and no more often than
  // `every`. What later ranks have done is known some steps later: it comes with their answers to what they were sent.
  void watch(std::chrono::duration<double> every, std::function<void(const std::string& text)> show);

  StageLink& link() override { return link_; }
  void begin(std::span<const BatchSlice> slices, LogitsWanted wanted) override;
  StepLogits end(StepLogits of_this_stage, LogitsWanted wanted) override;
  int64_t micro_batch(int64_t n, int64_t n_ubatch) const override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind : uint8_t { step, all_logits, end };

  bool leads() const { return ranks_.rank() == 0; }
  bool is_last() const { return ranks_.rank() + 1 == ranks_.size(); }
  void tell_all(std::span<const std::byte> message);
  void send_logits(const StepLogits& logits, LogitsWanted wanted);
  void take_logits(LogitsWanted wanted);
  void count_step();
  void watch();

  // Of a step whose logits another rank has made.
  std::span<const float> logits() override;
  std::span<const float> top() const override { return top_; }
  size_t n_top() const override { return n_top_; }

  Ranks& ranks_;
  RankLink link_;
  StageTimes times_;
  std::function<void(const std::string&)> watch_;  // none: nobody does
  std::chrono::duration<double> every_{};
  Clock::time_point watched_{};
  std::vector<StageTimes> shown_;
  // Of the step that runs.
  Clock::time_point step_began_{};
  double waited_before_ = 0;
  int64_t n_step_tokens_ = 0;
  // On rank 0, of the last step; on the last rank, what it has made.
  std::vector<float> all_, top_;
  size_t n_top_ = 0;
  StepLogits made_;
};

}  // namespace tandem
