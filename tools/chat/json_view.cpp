// The view for programs: one JSON object per line on stdout. Its "event" is one of:
//
//   start      model, description, devices, n_ctx
//   reasoning  text: a piece of the reasoning
//   text       text: a piece of the answer
//   end        reason (end, limit, context_full, stop, interrupted), content, reasoning, and statistics
//   note       text
//   error      message, code (the exit code, if the error ends the program)
#include <nlohmann/json.hpp>

#include "tools/chat/view.h"
#include "tools/output.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

const char* reason_word(StopReason reason) {
  switch (reason) {
    case StopReason::end_of_generation: return "end";
    case StopReason::limit: return "limit";
    case StopReason::context_full: return "context_full";
    case StopReason::stop_text: return "stop";
    case StopReason::interrupted: return "interrupted";
  }
  return "";
}

class JsonView final : public ChatView {
 public:
  void begin(const Model& model, int64_t n_ctx, const std::string& devices) override {
    event({{"event", "start"},
           {"model", model.path()},
           {"description", model.description()},
           {"devices", devices},
           {"n_ctx", n_ctx}});
  }
  void progress(int64_t, int64_t) override {}
  void text(AnswerPart part, std::string_view text) override {
    event({{"event", part == AnswerPart::reasoning ? "reasoning" : "text"}, {"text", text}});
  }
  void end(const Answer& a, int64_t n_past, int64_t n_ctx) override {
    const GenerateStats& s = a.stats;
    event({{"event", "end"},
           {"reason", reason_word(s.reason)},
           {"content", a.message.content},
           {"reasoning", a.message.reasoning},
           {"n_prompt", s.n_prompt},
           {"n_reused", a.n_reused},
           {"n_generated", s.n_generated},
           {"seed", a.seed},
           {"n_messages_left_out", a.n_left_out},
           {"n_shifts", s.n_shifts},
           {"prompt_s", s.prompt_s},
           {"generate_s", s.generate_s},
           {"n_past", n_past},
           {"n_ctx", n_ctx}});
  }
  void abandon() override {}
  void note(const std::string& text) override { event({{"event", "note"}, {"text", text}}); }
  void error(const std::string& message, ErrorCode code) override {
    event({{"event", "error"}, {"message", message}, {"code", static_cast<int>(code)}});
  }
  void show(std::span<const ChatMessage> messages) override {
    for (const ChatMessage& m : messages) note(m.role + ": " + m.content);
  }
  void show_source(const std::string& text) override { note(text); }
  void change(const ViewSettings&) override {}

 private:
  void event(const Json& object) {
    out_.write(object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    out_.flush();
  }

  Output out_;
};

}  // namespace

std::unique_ptr<ChatView> make_json_view() {
  return std::make_unique<JsonView>();
}

}  // namespace tandem::tools
