// Reads arbitrary bytes as options: the value of -ot, placed on a tiny model; the value of --tensor-type; the words of a
// command line, one a line.
//
// The first byte selects one of them.
#include "engine/model.h"
#include "fuzz/command_options.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/tiny_engine.h"
#include "plan/offload.h"
#include "tools/quantize/recipe.h"

namespace tandem {
namespace {

void override_tensors(const std::string& text) {
  static const fuzz::TinyEngine engine;
  OffloadOptions options;
  if (!fuzz::accepts({ErrorCode::usage}, [&] { options.tensor_overrides = tools::parse_overrides(text); }))
    return;
  TANDEM_CHECK(!options.tensor_overrides.empty());
  std::optional<Placement> placement;
  fuzz::accepts({ErrorCode::usage}, [&] {
    const Model& model = engine.model();
    placement = place(model.architecture(), model.weights(), engine.devices(), options, 0);
  });
  if (placement) TANDEM_CHECK(!placement->overrides.empty());
}

void choose_dtype(const std::string& text) {
  std::optional<tools::DTypeRule> rule;
  if (!fuzz::accepts({ErrorCode::usage}, [&] { rule = tools::parse_rule("--tensor-type", text); })) return;
  TANDEM_CHECK(!rule->pattern.empty() && dtype_info(rule->dtype).from_float);
  fuzz::accepts({ErrorCode::usage}, [&] { rule->regex.found_in("blk.12.ffn_down_exps.weight"); });
}

void read_words(fuzz::Input input) {
  static fuzz::CommandOptions options;
  std::vector<std::string> words = {"run", "--no-config", "model.gguf"};
  while (!input.rest().empty()) words.emplace_back(input.line());
  try {
    fuzz::accepts({ErrorCode::usage}, [&] { tools::parse_arguments(options.app(), words); });
  } catch (const CLI::Success&) {  // --help
  }
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  fuzz::Input input(data, size);
  const uint8_t which = input.byte();
  if (which % 3 == 0) {
    override_tensors(std::string(input.rest()));
  } else if (which % 3 == 1) {
    choose_dtype(std::string(input.rest()));
  } else {
    read_words(input);
  }
  return 0;
}
