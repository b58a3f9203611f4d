// The view for programs: the events of tools/json_events.h.
#include "tools/chat/view.h"
#include "tools/json_events.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

class JsonView final : public ChatView {
 public:
  void begin(const Model& model, int64_t n_ctx, const std::string& devices) override {
    vocab_ = &model.vocab();
    events_.start(model, n_ctx, devices);
  }
  void progress(int64_t, int64_t) override {}
  void token(const TokenLogprobs& logprobs) override { events_.token(*vocab_, logprobs); }
  void text(AnswerPart part, std::string_view text) override {
    part == AnswerPart::reasoning ? events_.reasoning(text) : events_.text(text);
  }
  void end(const Answer& a, int64_t n_past, int64_t n_ctx) override {
    const GenerateStats& s = a.stats;
    events_.end(s.reason, a.message.content,
                {{"reasoning", a.message.reasoning},
                 {"n_prompt", s.n_prompt},
                 {"n_reused", a.n_reused},
                 {"n_loaded", a.n_loaded},
                 {"n_generated", s.n_generated},
                 {"seed", a.seed},
                 {"n_messages_left_out", a.n_left_out},
                 {"n_shifts", s.n_shifts},
                 {"n_guessed", s.speculation.n_checked},
                 {"n_guessed_right", s.speculation.n_right},
                 {"prompt_s", s.prompt_s},
                 {"generate_s", s.generate_s},
                 {"experts", experts_used_json(s)},
                 {"n_past", n_past},
                 {"n_ctx", n_ctx}});
  }
  void abandon() override {}
  void note(const std::string& text) override { events_.note(text); }
  void error(const std::string& message, ErrorCode code) override { events_.error(message, code); }
  void show(std::span<const ChatMessage> messages) override {
    for (const ChatMessage& m : messages) note(m.role + ": " + m.content);
  }
  void show_source(const std::string& text) override { note(text); }
  void change(const ViewSettings&) override {}

 private:
  JsonEvents events_;
  const Vocab* vocab_ = nullptr;
};

}  // namespace

std::unique_ptr<ChatView> make_json_view() {
  return std::make_unique<JsonView>();
}

}  // namespace tandem::tools
