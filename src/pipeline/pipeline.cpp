#include "pipeline/pipeline.h"

#include <algorithm>

#include "base/error.h"
#include "graph/top_k.h"
#include "pipeline/micro_batch.h"
#include "pipeline/packet.h"
#include "pipeline/tags.h"
#include "pipeline/top_logits.h"
#include "ranks/gather.h"

namespace tandem {
namespace {

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

}  // namespace

Pipeline::Pipeline(Ranks& ranks) : ranks_(ranks), link_(ranks) {}

void Pipeline::tell_all(std::span<const std::byte> message) {
  for (int to = 1; to < ranks_.size(); ++to) ranks_.send(to, kCommandTag, message);
}

// ---- Rank 0 ----

void Pipeline::begin(std::span<const BatchSlice> slices, LogitsWanted wanted) {
  TANDEM_CHECK(slices.size() == 1);
  const BatchSlice& slice = slices.front();
  const auto n = static_cast<int64_t>(slice.tokens.size());
  if (leads()) {
    Packet packet;
    packet.put(Kind::step).put(wanted).put(slice.sequence->length() - n).put(slice.n_outputs);
    packet.put_all(slice.tokens);
    tell_all(packet.bytes());
  }
  step_began_ = Clock::now();
  waited_before_ = link_.waited_s();
  n_step_tokens_ = n;
}

void Pipeline::count_step() {
  const double seconds = seconds_since(step_began_) - (link_.waited_s() - waited_before_);
  constexpr int64_t kMostGuesses = 16;
  if (n_step_tokens_ <= kMostGuesses) {
    ++times_.n_single_steps;
    times_.single_s += seconds;
  } else {
    ++times_.n_prompt_steps;
    times_.n_prompt_tokens += n_step_tokens_;
    times_.prompt_s += seconds;
  }
  link_.set_times(times());
  if (leads() && watch_) watch();
}

void Pipeline::watch(std::chrono::duration<double> every, std::function<void(const std::string&)> show) {
  every_ = every;
  watch_ = std::move(show);
  watched_ = Clock::now();
}

// What all have done since the last time.
void Pipeline::watch() {
  if (Clock::now() - watched_ < every_) return;
  const std::vector<StageTimes> now = link_.all_times();
  std::vector<StageTimes> news;
  shown_.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) news.push_back(now[i].since(shown_[i]));
  const std::string text = live_text(ranks_, news);
  if (!text.empty()) watch_(text);
  shown_ = now;
  watched_ = Clock::now();
}

StepLogits Pipeline::end(StepLogits of_this_stage, LogitsWanted wanted) {
  if (is_last()) made_ = of_this_stage;
  count_step();
  if (wanted == LogitsWanted::none || ranks_.size() == 1) return of_this_stage;
  if (is_last()) send_logits(of_this_stage, wanted);
  if (!leads()) return of_this_stage;
  take_logits(wanted);
  return {*this, of_this_stage.n_vocab()};
}

void Pipeline::take_logits(LogitsWanted wanted) {
  const auto began = Clock::now();
  Packet packet(ranks_.receive(ranks_.size() - 1, kLogitsTag));
  times_.waited_s += seconds_since(began);
  n_top_ = packet.get<uint64_t>();
  std::vector<float>& values = n_top_ > 0 ? top_ : all_;
  top_.clear();
  all_.clear();
  values = packet.get_rest<float>();
  TANDEM_CHECK(wanted == LogitsWanted::largest || n_top_ == 0);
}

std::span<const float> Pipeline::logits() {
  if (!all_.empty()) return all_;
  const int last = ranks_.size() - 1;
  ranks_.send(last, kCommandTag, Packet().put(Kind::all_logits).bytes());
  Packet packet(ranks_.receive(last, kLogitsTag));
  packet.get<uint64_t>();
  all_ = packet.get_rest<float>();
  return all_;
}

void Pipeline::finish() {
  if (leads()) tell_all(Packet().put(Kind::end).bytes());
}

int64_t Pipeline::micro_batch(int64_t n, int64_t n_ubatch) const {
  return pipeline_micro_batch(n, n_ubatch, ranks_.size());
}

// ---- Other ranks ----

void Pipeline::follow(Runtime& runtime) {
  KvSequence sequence = runtime.new_sequence();
  for (;;) {
    const auto began = Clock::now();
    Packet packet(ranks_.receive(0, kCommandTag));
    times_.waited_s += seconds_since(began);
    const auto kind = packet.get<Kind>();
    if (kind == Kind::end) return;
    if (kind == Kind::all_logits) {
      send_logits(made_, LogitsWanted::all);
      continue;
    }
    const auto wanted = packet.get<LogitsWanted>();
    const auto length = packet.get<int64_t>(), n_outputs = packet.get<int64_t>();
    const std::vector<int32_t> tokens = packet.get_rest<int32_t>();
    TANDEM_CHECK(length <= sequence.length());
    sequence.truncate(length);
    TANDEM_CHECK(sequence.length() == length);
    const BatchSlice slice{&sequence, tokens, n_outputs};
    if (!runtime.step(std::span(&slice, 1), wanted))
      throw Error(ErrorCode::out_of_memory, "out of memory in a step");
  }
}

// All logits, or the largest if these are wanted.
void Pipeline::send_logits(const StepLogits& logits, LogitsWanted wanted) {
  uint64_t n_top = 0;
  std::vector<float> largest;
  std::span<const float> values;
  if (wanted == LogitsWanted::all) {
    values = logits.all();
  } else if (!logits.top().empty()) {
    n_top = logits.n_top();
    values = logits.top();
  } else {
    n_top = std::min(static_cast<size_t>(kMaxTopK), logits.n_vocab());
    values = largest = top_logits(logits.all(), logits.n_vocab(), n_top);
  }
  Packet packet;
  packet.put(n_top).put_all(values);
  ranks_.send(0, kLogitsTag, packet.bytes());
}

// ---- All ----

StageTimes Pipeline::times() const {
  StageTimes times = times_;
  times.waited_s += link_.waited_s();
  times.sent_bytes = link_.sent_bytes();
  return times;
}

std::vector<StageTimes> Pipeline::all_times() {
  return gather(ranks_, times());
}

}  // namespace tandem
