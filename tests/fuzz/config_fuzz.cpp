// Reads arbitrary bytes as the configuration file of a command: what is wrong is named with the file and the line, and
// what is accepted sets options.
#include "fuzz/command_options.h"
#include "fuzz/fuzz_target.h"
#include "tools/options/config.h"

namespace tandem::tools {
namespace {

void check(const std::string& path, std::string_view text, const CLI::App& root) {
  ConfigFile file;
  if (!fuzz::accepts({ErrorCode::bad_file}, [&] { file = parse_config(text, path, root); })) return;
  int line = 0;
  for (const ConfigSection& section : file.sections) {
    for (const ConfigEntry& entry : section.entries) {
      TANDEM_CHECK(!entry.key.empty() && !entry.value.empty() && entry.line > line);
      line = entry.line;
    }
    matches_model(section.name, "/models/Qwen3-8B-Q4_K_M.gguf");
  }
}

}  // namespace
}  // namespace tandem::tools

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static fuzz::CommandOptions options;
  static fuzz::MemoryFile file;
  const std::string_view text = fuzz::Input(data, size).rest();
  tools::check(file.set(text), text, options.app());
  fuzz::accepts({ErrorCode::bad_file}, [&] {
    tools::parse_arguments(options.app(), {"run", "--config", file.path(), "model.gguf"});
  });
  return 0;
}
