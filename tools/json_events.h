// The events of `--json`: one JSON object per line on stdout, written at once. "event" is one of:
//
//   start      model, description, devices, n_ctx
//   reasoning  text: a piece of the reasoning (chat)
//   text       text: a piece of the answer, in whole characters
//   token      with --logprobs, before the text that it completes: a token as token_json() has it
//   end        reason (eos, limit, context, stop, interrupted), content, and statistics
//   note       text
//   error      message, code (the exit code, if the error ends the program)
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/generate.h"
#include "tools/output.h"

namespace tandem::tools {

// A generated token: {"id", "token": its text, "bytes": [its bytes], "logprob", "top_logprobs": [{"id",
// "token", "bytes", "logprob"}, ...]}. Half a character in "token" is U+FFFD; a logprob of -inf is null.
nlohmann::ordered_json token_json(const Vocab& vocab, const TokenLogprobs& logprobs);

class JsonEvents {
 public:
  void start(const Model& model, int64_t n_ctx, const std::string& devices);
  void text(std::string_view text) { write({{"event", "text"}, {"text", text}}); }
  void reasoning(std::string_view text) { write({{"event", "reasoning"}, {"text", text}}); }
  void token(const Vocab& vocab, const TokenLogprobs& logprobs);
  // `statistics`: what follows reason and content.
  void end(StopReason reason, std::string_view content, const nlohmann::ordered_json& statistics);
  void note(std::string_view text) { write({{"event", "note"}, {"text", text}}); }
  void error(const Error& error);
  void error(std::string_view message, ErrorCode code);

 private:
  void write(const nlohmann::ordered_json& object);

  Output out_;
};

// Runs a command. With --json, an error that ends it is an event too, except an interrupt, which has an end.
void run_with_events(bool json, const std::function<void()>& command);

}  // namespace tandem::tools
