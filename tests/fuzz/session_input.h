// Saved sessions of the tiny model, whole or with a transcript of their own, for session_fuzz and its seeds.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/conversation.h"
#include "engine/model_identity.h"
#include "engine/session_file.h"
#include "fuzz/tiny_engine.h"
#include "text/chat_template.h"

namespace tandem::fuzz {

class TinySession {
 public:
  TinySession()
      : session_(engine_.model(), engine_.devices(), TinyEngine::options(1)),
        template_(read_model_template(engine_.model().file()).text) {}

  Session& session() { return session_; }
  Conversation conversation() {
    ConversationOptions options;
    options.sampling.temp = 0;
    options.n_predict = 2;
    return Conversation(session_, template_, options);
  }

  // A saved session without tokens and with this transcript.
  std::string file_with(std::string_view transcript) const {
    const test::TempDir directory;
    static const std::string rotation = [&] {
      save_session(session_, directory.path("saved"), "", Saved::transcript);
      return GgufFile(directory.path("saved")).metadata().get<std::string>("session.rotation");
    }();
    static const std::string print = fingerprint(engine_.model());
    test::RawGguf file;
    file.pairs = {test::kv_string("general.architecture", kSessionArchitecture),
                  test::kv_u32("session.version", 2),
                  test::kv_string("session.fingerprint", print),
                  test::kv_string("session.model", "tiny"),
                  test::kv_string("session.rotation", rotation),
                  test::ByteString().string("session.tokens").u32(9).u32(5).u64(0).bytes(),
                  test::kv_string("session.transcript", transcript)};
    return file.bytes();
  }

 private:
  TinyEngine engine_;
  Session session_;
  ChatTemplate template_;
};

}  // namespace tandem::fuzz
