// Loads arbitrary bytes as a session that was saved with a tiny model: as a conversation, as `chat --session` does, or as
// the cache of a prompt, as `run --prompt-cache` does. What is refused changes nothing; what is accepted continues, and a
// conversation can be saved and loaded again.
//
// The first byte selects: the input is a file, loaded as either, or the transcript of a valid file.
#include "fuzz/fuzz_target.h"
#include "fuzz/session_input.h"

namespace tandem {
namespace {

// What the caller of a loaded session may see: a context that is full, or NaN that the file's cache had.
constexpr auto kMayContinue = {ErrorCode::usage, ErrorCode::numeric};

std::vector<int32_t> tokens_of(const Session& session) {
  return {session.tokens().begin(), session.tokens().end()};
}

void load_conversation(fuzz::TinySession& tiny, const std::string& path) {
  static const test::TempDir directory;
  Conversation conversation = tiny.conversation();
  conversation.set_system("S");
  const auto messages = conversation.messages();
  const auto tokens = tokens_of(tiny.session());
  const bool is_loaded =
      fuzz::accepts({ErrorCode::bad_file, ErrorCode::usage}, [&] { conversation.load(path); });
  if (!is_loaded) {
    TANDEM_CHECK(conversation.messages() == messages && tokens_of(tiny.session()) == tokens);
    return;
  }
  const auto loaded = conversation.messages();
  conversation.save(directory.path("again"));
  conversation.clear();
  conversation.load(directory.path("again"));
  TANDEM_CHECK(conversation.messages() == loaded);
  const bool is_answered = fuzz::accepts(kMayContinue, [&] { conversation.ask("n", {}); });
  TANDEM_CHECK(conversation.messages().size() == loaded.size() + (is_answered ? 2 : 0));
}

void load_prompt(fuzz::TinySession& tiny, const std::string& path) {
  Session& session = tiny.session();
  const auto tokens = tokens_of(session);
  std::optional<SessionFile> file;
  if (!fuzz::accepts({ErrorCode::bad_file, ErrorCode::usage}, [&] { file.emplace(path, session); })) return;
  const size_t n = file->tokens().size();
  if (!fuzz::accepts({ErrorCode::usage}, [&] { file->restore(session, n); })) {
    TANDEM_CHECK(tokens_of(session) == tokens);
    return;
  }
  TANDEM_CHECK(tokens_of(session) == file->tokens());
  const int32_t id = 77;
  fuzz::accepts(kMayContinue, [&] { session.append(std::span(&id, 1)); });
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static fuzz::TinySession tiny;
  static fuzz::MemoryFile file;
  fuzz::Input input(data, size);
  const uint8_t what = input.byte();
  tiny.session().truncate(0);
  if (what % 3 == 2) {
    load_conversation(tiny, file.set(tiny.file_with(input.rest())));
  } else if (what % 3 == 1) {
    load_prompt(tiny, file.set(input.rest()));
  } else {
    load_conversation(tiny, file.set(input.rest()));
  }
  return 0;
}
