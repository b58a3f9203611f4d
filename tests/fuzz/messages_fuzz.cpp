// Renders arbitrary JSON as the messages of a conversation, with every built-in chat template: an array of messages, or
// an object with messages, tools and other variables, as `tandem template` takes it.
//
// The first byte selects the template.
#include <utility>
#include <vector>

#include "base/json.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/marked_prompt.h"
#include "text/builtin_templates.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Uses what the built-in ones leave out: tools, calls, variables.
constexpr const char* kWithTools =
    "{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ x }}{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m.content is string %}{{ m.content | trim }}{% elif m.content %}{% for p in m.content %}{{ p.text "
    "}}"
    "{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | "
    "tojson(indent=2) }}{% endfor %}{% endfor %}";

std::vector<ChatTemplate> make_templates() {
  std::vector<ChatTemplate> templates;
  for (const BuiltinTemplate& builtin : builtin_templates()) templates.emplace_back(builtin.text);
  templates.emplace_back(kWithTools);
  return templates;
}

void render(const ChatTemplate& chat_template, std::string_view text) {
  Json messages = parse_json<Json>(text, "messages");
  RenderOptions options;
  options.limits = fuzz::kLimits;
  options.now = std::tm{};
  if (messages.is_object()) {
    options.extra = std::exchange(messages, Json());
    const auto take = [&](const char* name) {
      const auto found = options.extra.find(name);
      Json value = found == options.extra.end() ? Json() : *found;
      options.extra.erase(name);
      return value;
    };
    messages = take("messages");
    options.tools = take("tools");
  }
  if (messages.is_array()) fuzz::check_spans(chat_template.render_marked(messages, options));
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const std::vector<ChatTemplate> templates = make_templates();
  fuzz::Input input(data, size);
  const ChatTemplate& chosen = templates[input.byte() % templates.size()];
  fuzz::accepts({ErrorCode::bad_file}, [&] { render(chosen, input.rest()); });
  return 0;
}
