// Short forms of several letters. CLI11 knows only those of one letter.
#include "tools/options/options.h"

namespace tandem::tools {
namespace {

struct ShortForm {
  std::string_view letters;
  std::string_view long_name;
};

// Every short form of more than one letter, without its dash.
constexpr ShortForm kShortForms[] = {
    {"ub", "ubatch-size"},
    {"tb", "threads-batch"},
    {"ctk", "cache-type-k"},
    {"ctv", "cache-type-v"},
    {"fa", "flash-attn"},
    {"gan", "grp-attn-n"},
    {"gaw", "grp-attn-w"},
    {"co", "color"},
    {"st", "single-turn"},
    {"no-cnv", "no-conversation"},
    {"pg", "prompt-gen"},
    {"oe", "output-err"},
    {"mmp", "mmap"},
    {"ngl", "n-gpu-layers"},
    {"nkvo", "no-kv-offload"},
    {"ot", "override-tensor"},
    {"cmoe", "cpu-moe"},
    {"ncmoe", "n-cpu-moe"},
    {"sm", "split-mode"},
    {"ts", "tensor-split"},
    {"mg", "main-gpu"},
    {"dev", "device"},
    {"ofreq", "output-frequency"},
    {"jf", "json-schema-file"},
    {"sys", "system-prompt"},
    {"sysf", "system-prompt-file"},
    {"hf", "hf-repo"},
    {"hfr", "hf-repo"},
    {"hff", "hf-file"},
    {"hft", "hf-token"},
    {"mu", "model-url"},
    {"np", "parallel"},
    {"cnv", "conversation"},
    {"md", "model-draft"},
    {"ngld", "gpu-layers-draft"},
    {"cd", "ctx-size-draft"},
};

}  // namespace

std::string_view multi_letter_short_form(std::string_view long_name) {
  for (const ShortForm& form : kShortForms) {
    if (form.long_name == long_name) return form.letters;
  }
  return {};
}

std::string_view long_name_of(std::string_view short_form) {
  for (const ShortForm& form : kShortForms) {
    if (form.letters == short_form) return form.long_name;
  }
  return {};
}

}  // namespace tandem::tools
