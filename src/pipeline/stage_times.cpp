#include "pipeline/stage_times.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace tandem {
namespace {

double mean_ms(double seconds, int64_t n) {
  return n > 0 ? 1e3 * seconds / static_cast<double>(n) : 0;
}

}  // namespace

StageTimes StageTimes::since(const StageTimes& before) const {
  StageTimes t = *this;
  t.n_prompt_tokens -= before.n_prompt_tokens;
  t.n_prompt_steps -= before.n_prompt_steps;
  t.n_single_steps -= before.n_single_steps;
  t.prompt_s -= before.prompt_s;
  t.single_s -= before.single_s;
  t.waited_s -= before.waited_s;
  t.sent_bytes -= before.sent_bytes;
  return t;
}

std::string stage_table(const Ranks& ranks, std::span<const LayerRange> layers,
                        std::span<const StageTimes> times) {
  std::string text;
  for (size_t i = 0; i < times.size(); ++i) {
    const StageTimes& t = times[i];
    text += format("{}: layers {} to {}; ", ranks.name_of(static_cast<int>(i)), layers[i].first,
                   layers[i].end - 1);
    if (t.n_prompt_steps > 0) {
      text += format("prompt {:.2f} ms a token, in steps of {}; ", mean_ms(t.prompt_s, t.n_prompt_tokens),
                     t.n_prompt_tokens / t.n_prompt_steps);
    }
    text +=
        format("{:.2f} ms a step of single tokens; waited {:.2f} s; sent {:.1f} MB\n",
               mean_ms(t.single_s, t.n_single_steps), t.waited_s, static_cast<double>(t.sent_bytes) / 1e6);
  }
  return text;
}

std::string live_text(const Ranks& ranks, std::span<const StageTimes> times) {
  // Ranks behind others have made fewer of the last steps: a prompt's tokens are compared if all have read some.
  const bool of_prompt =
      std::ranges::all_of(times, [](const StageTimes& t) { return t.n_prompt_tokens > 0; });
  std::vector<double> ms;
  for (const StageTimes& t : times) {
    ms.push_back(of_prompt ? mean_ms(t.prompt_s, t.n_prompt_tokens) : mean_ms(t.single_s, t.n_single_steps));
  }
  const auto slowest = std::ranges::max_element(ms) - ms.begin();
  std::string text;
  for (size_t i = 0; i < ms.size(); ++i) {
    if (ms[i] <= 0) continue;
    text += format("{}{} {:.2f} ms{}{}", text.empty() ? "" : ", ", ranks.name_of(static_cast<int>(i)), ms[i],
                   text.empty() ? (of_prompt ? " a token of the prompt" : " a step") : "",
                   ms.size() > 1 && static_cast<ptrdiff_t>(i) == slowest ? " (the slowest)" : "");
  }
  return text;
}

}  // namespace tandem
