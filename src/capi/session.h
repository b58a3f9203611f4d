// The session object of the C library.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capi/model.h"
#include "capi/options.h"
#include "capi/piece.h"
#include "engine/generate.h"
#include "engine/session.h"
#include "speculate/speculation.h"

namespace tandem::capi {

// Shared by the program's handle and the chats. All members that throw leave it fit for use.
class OpenSession {
 public:
  OpenSession(std::shared_ptr<const LoadedModel> model, const tandem_options& options);

  Session& session() { return *session_; }
  const Session& session() const { return *session_; }
  int64_t n_past() const { return work_ ? work_->work.n_past() : session_->n_past(); }
  const Model& model() const { return *loaded_->model; }

  // Ends the text in work and begins a call that can be interrupted.
  void start_call();
  void interrupt() { interrupted_.store(true, std::memory_order_relaxed); }
  bool interrupted() const { return interrupted_.load(std::memory_order_relaxed); }

  // Reads a prompt, of which it keeps what the session holds already.
  void begin(const tandem_options& options, std::vector<int32_t> prompt);
  // The next piece of the text. Throws Error(usage) if there is none.
  const tandem_piece& next();
  // Ends the text: no more pieces.
  void stop();

  // Null without guesses.
  Speculation* speculation() { return speculation_.get(); }
  PieceBuilder& pieces() { return pieces_; }
  tandem_result& result() { return result_; }
  const tandem_result& result() const { return result_; }
  void set_texts(std::string text, std::string reasoning);
  void append_text(std::string_view text);

 private:
  // A text in work. It does not move: the generation refers to the members before it.
  struct Text {
    Text(Session& session, const tandem_options& options, Speculation* speculation)
        : generation(options.generation),
          sampler(options.sampling, sampler_model(session)),
          work(session, sampler, generation, speculation) {}
    GenerateOptions generation;
    Sampler sampler;
    Generation work;
    bool cut_short = false;  // the prompt was interrupted
  };
  void take_statistics(const GenerateStats& stats);
  const tandem_piece& last_piece(std::string_view text, StopReason reason);
  void end_text();
  void publish_texts();

  std::shared_ptr<const LoadedModel> loaded_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<BlockStore> store_;  // null: none
  std::unique_ptr<Session> session_;
  std::unique_ptr<Speculation> speculation_;
  std::unique_ptr<Text> work_;
  PieceBuilder pieces_;
  std::string text_, reasoning_;
  tandem_result result_{};
  std::atomic<bool> interrupted_{false};
  static_assert(std::atomic<bool>::is_always_lock_free, "set in signal handlers");
};

}  // namespace tandem::capi

struct tandem_session {
  std::shared_ptr<tandem::capi::OpenSession> open;
};
