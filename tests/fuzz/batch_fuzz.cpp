// Reads arbitrary bytes as `tandem batch` does: as lines of requests, which a tiny model answers if they are accepted, or
// as the answers of an earlier run, which must be the same when they are read again.
//
// The first byte selects requests or answers.
#include <optional>
#include <vector>

#include "engine/batcher.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/tiny_engine.h"
#include "tools/batch/answer_file.h"
#include "tools/batch/line_reader.h"
#include "tools/batch/request.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

// Answers a few tokens of each accepted line.
class Requests {
 public:
  Requests() : runtime_(engine_.model(), engine_.devices(), fuzz::TinyEngine::options(2)) {}

  void answer(const fuzz::MemoryFile& file) {
    LineReader reader(file.descriptor(), "fuzz.jsonl");
    RequestParser parser(engine_.model(), {}, {}, "", runtime_.n_ctx_sequence(), "input");
    Batcher batcher(runtime_);
    std::string line;
    int64_t n_added = 0;
    while (reader.next(line) == LineReader::Result::line && n_added < 3) {
      if (is_blank(line)) continue;
      Json id;
      std::optional<BatchRequest> request;
      const bool is_accepted = fuzz::accepts({ErrorCode::bad_file, ErrorCode::usage},
                                             [&] { request = parser.parse(reader.n_lines(), line, id); });
      TANDEM_CHECK(id == id_of(line) || !is_accepted);
      if (!is_accepted) continue;
      check(*request, reader.n_lines());
      request->generation.n_predict = 2;
      n_added += fuzz::accepts({ErrorCode::bad_file, ErrorCode::usage}, [&] { batcher.add(*request); });
    }
    int64_t n_answered = 0;
    while (batcher.n_open() > 0) {
      batcher.step([&](const BatchAnswer&) { ++n_answered; });
    }
    TANDEM_CHECK(n_answered == n_added);
  }

 private:
  void check(const BatchRequest& request, int64_t n_lines) const {
    TANDEM_CHECK(request.index == n_lines && !request.prompt.empty());
    TANDEM_CHECK(static_cast<int64_t>(request.prompt.size()) <= runtime_.n_ctx_sequence());
    for (const int32_t id : request.prompt) TANDEM_CHECK(id >= 0 && id < engine_.model().vocab().size());
  }

  fuzz::TinyEngine engine_;
  Runtime runtime_;
};

struct Counts {
  int64_t n_done, n_errors;
  bool operator==(const Counts&) const = default;
};

std::optional<Counts> count_answers(const std::string& path) {
  std::optional<Counts> counts;
  fuzz::accepts({ErrorCode::bad_file}, [&] {
    const AnswerFile answers(path);
    counts = {answers.n_done(), answers.n_errors()};
    for (const int64_t index : {0, 1, 2}) {
      if (answers.has(index)) answers.is_of(index, Json("a"));
    }
  });
  return counts;
}

}  // namespace
}  // namespace tandem::tools

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static tools::Requests requests;
  static fuzz::MemoryFile file;
  fuzz::Input input(data, size);
  const bool are_requests = input.byte() % 2 == 0;
  file.set(input.rest());
  if (are_requests) {
    requests.answer(file);
  } else if (const auto counts = tools::count_answers(file.path())) {
    TANDEM_CHECK(counts->n_errors <= counts->n_done);
    TANDEM_CHECK(tools::count_answers(file.path()) == counts);
  }
  return 0;
}
