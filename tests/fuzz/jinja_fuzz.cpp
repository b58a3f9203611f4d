// Runs arbitrary bytes as a chat template on a small conversation. Parsing and rendering must end soon, and
// either give a prompt with marks inside its bounds or throw Error(bad_file).
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Grüße <b>\n"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]}])");
  RenderOptions options;
  options.limits = {.n_operations = 200000, .n_bytes = 64 << 20, .n_output_bytes = 1 << 20, .n_depth = 300};
  options.now = std::tm{};
  try {
    const ChatTemplate chat_template(std::string_view(reinterpret_cast<const char*>(data), size));
    const MarkedPrompt prompt = chat_template.render_marked(messages, options);
    size_t end = 0;
    for (const auto& span : prompt.user) {
      TANDEM_CHECK(span.begin >= end && span.begin < span.end && span.end <= prompt.text.size());
      end = span.end;
    }
  } catch (const Error& error) {
    TANDEM_CHECK(error.code() == ErrorCode::bad_file);
  }
  return 0;
}
