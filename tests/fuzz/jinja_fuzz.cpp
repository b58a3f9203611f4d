// Runs arbitrary bytes as a chat template on a small conversation. Parsing and rendering must end soon, and either give
// a prompt with marks inside its bounds or throw Error(bad_file).
#include "base/json.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/marked_prompt.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Grüße <b>\n"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]}])");
  RenderOptions options;
  options.limits = fuzz::kLimits;
  options.now = std::tm{};
  fuzz::accepts({ErrorCode::bad_file}, [&] {
    const ChatTemplate chat_template(fuzz::Input(data, size).rest());
    fuzz::check_spans(chat_template.render_marked(messages, options));
  });
  return 0;
}
