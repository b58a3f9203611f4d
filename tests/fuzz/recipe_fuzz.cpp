// Reads arbitrary bytes as a recipe of quantize: a text of rules, or a model whose mix is taken over. What is accepted
// chooses a dtype for tensors, and the rules of a model match the names that it has.
#include "fuzz/fuzz_target.h"
#include "gguf/file.h"
#include "tools/quantize/recipe.h"

namespace tandem::tools {
namespace {

void check(const std::string& path) {
  std::vector<DTypeRule> rules;
  if (!fuzz::accepts({ErrorCode::usage, ErrorCode::bad_file}, [&] { rules = read_recipe(path); })) return;
  for (const DTypeRule& rule : rules) {
    TANDEM_CHECK(!rule.pattern.empty() && dtype_info(rule.dtype).from_float);
    fuzz::accepts({ErrorCode::usage}, [&] {
      for (const char* name : {"blk.12.ffn_down_exps.weight", "output.weight", ""}) rule.regex.found_in(name);
    });
  }
}

// Each quantized matrix of the file has its rule, which means no other name.
void check_model(const std::string& path) {
  fuzz::accepts({ErrorCode::bad_file, ErrorCode::usage}, [&] {
    const GgufFile file(path);
    const std::vector<DTypeRule> rules = read_recipe(path);
    auto rule = rules.begin();
    for (const TensorInfo& tensor : file.tensors()) {
      if (!dtype_info(tensor.dtype).from_float || tensor.dims[1] <= 1) continue;
      TANDEM_CHECK(rule != rules.end() && rule->dtype == tensor.dtype);
      TANDEM_CHECK(rule->regex.found_in(tensor.name));
      TANDEM_CHECK(!rule->regex.found_in(std::string(tensor.name) + "x"));
      ++rule;
    }
    TANDEM_CHECK(rule == rules.end());
  });
}

}  // namespace
}  // namespace tandem::tools

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static fuzz::MemoryFile file;
  const std::string_view bytes = fuzz::Input(data, size).rest();
  file.set(bytes);
  tools::check(file.path());
  if (bytes.starts_with("GGUF")) tools::check_model(file.path());
  return 0;
}
