// Arguments without a dash: `tandem run model.gguf "hi"` is `tandem run -m model.gguf -p "hi"`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::tools {

// The options that a command's positional arguments stand for, in order, by long name. The last takes all that
// follow if `repeats`.
struct PositionalOptions {
  std::vector<std::string_view> names;
  bool repeats = false;
};
PositionalOptions positional_options(const std::string& command);

// " MODEL [PROMPT]" for a usage line; "" for a command without such arguments.
std::string positional_usage(const CLI::App& command);

// Options that say which model to use; one is enough.
inline constexpr std::string_view kModelOptions[] = {"model", "hf-repo", "model-url"};
// Options that give the prompt.
inline constexpr std::string_view kPromptOptions[] = {"prompt", "file"};

// Whether this can be the name of a model: an existing file, something.gguf, or USER/REPO[:QUANT].
bool looks_like_model(const std::string& text);

}  // namespace tandem::tools
