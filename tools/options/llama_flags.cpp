#include "tools/options/llama_flags.h"

#include <algorithm>
#include <utility>

namespace tandem::tools {
namespace {

constexpr std::string_view kLora =
    "LoRA adapters are not supported: merge the adapter into the model before "
    "converting it";
constexpr std::string_view kControlVector = "control vectors are not supported";
constexpr std::string_view kImages =
    "images and audio are not supported: tandem runs the text part of a model";
constexpr std::string_view kDraft = "this command does not guess tokens ahead: tandem run and tandem chat do";
constexpr std::string_view kCompletes = "run completes text as it is: use tandem chat for a conversation";
constexpr std::string_view kAsks = "run completes one prompt and exits: use tandem chat to go back and forth";
constexpr std::string_view kAffinity =
    "threads are not bound to chosen CPUs: start tandem with taskset or numactl";
constexpr std::string_view kTemplate =
    "text around a message comes from the chat template: change it with "
    "--chat-template";

// Rows for single commands come before the one for all.
// clang-format off
constexpr LlamaFlag kFlags[] = {
    // adapters, other inputs, other models
    {"", "--lora", Takes::value, kLora},
    {"", "--lora-scaled", Takes::value, kLora},
    {"", "--lora-init-without-apply", Takes::nothing, kLora},
    {"", "--control-vector --control-vector-scaled --control-vector-layer-range", Takes::value, kControlVector},
    {"", "--mmproj -mm --mmproj-url -mmu --image --audio --image-min-tokens --image-max-tokens", Takes::value,
     kImages},
    {"", "--no-mmproj --no-mmproj-offload", Takes::nothing, ""},
    {"run chat", "-hfd -hfrd --hf-repo-draft", Takes::value, "name the draft model with -md USER/REPO"},
    {"run chat", "--draft-min --draft-n-min --draft-p-min --draft-p-split", Takes::value, ""},
    {"run chat", "-devd --device-draft", Takes::value, "the draft model uses the devices of --device"},
    {"run chat", "-td --threads-draft -tbd --threads-batch-draft", Takes::value, "the draft model uses the threads of -t"},
    {"", "-md --model-draft -hfd -hfrd --hf-repo-draft --spec", Takes::value, kDraft},
    {"", "--draft-max --draft --draft-n --draft-min --draft-n-min --draft-p-min --draft-p-split -cd "
         "--ctx-size-draft -devd --device-draft -ngld --gpu-layers-draft --n-gpu-layers-draft -td "
         "--threads-draft -tbd --threads-batch-draft", Takes::value, kDraft},
    {"", "-dr --docker-repo", Takes::value,
     "models are not pulled from container registries: give a file, or USER/REPO of the model hub"},
    {"", "--rpc", Takes::value, "computing on other machines is not supported"},

    // conversation
    {"run", "-cnv --conversation", Takes::nothing, kCompletes},
    {"run", "-sys --system-prompt -sysf --system-prompt-file --chat-template --chat-template-file "
            "--chat-template-kwargs --reasoning --reasoning-format --reasoning-budget", Takes::value, kCompletes},
    {"run", "--jinja", Takes::nothing, kCompletes},
    {"run", "--no-jinja", Takes::nothing, ""},
    {"run", "-i --interactive -if --interactive-first -mli --multiline-input", Takes::nothing, kAsks},
    {"run", "--in-prefix --in-suffix", Takes::value, kAsks},
    {"run", "--in-prefix-bos", Takes::nothing, kAsks},
    {"run", "--session", Takes::value, "run has no sessions: use --prompt-cache, or tandem chat --session"},
    {"chat", "-no-cnv --no-conversation", Takes::nothing, "chat is a conversation: use tandem run to complete text"},
    {"chat", "-i --interactive -if --interactive-first", Takes::nothing, ""},
    {"chat", "-mli --multiline-input", Takes::nothing, ""},
    {"chat", "--in-prefix --in-suffix", Takes::value, kTemplate},
    {"chat", "--in-prefix-bos", Takes::nothing, kTemplate},
    {"chat", "--keep", Takes::value, ""},
    {"chat", "--perf --no-perf --warmup --no-display-prompt --display-prompt", Takes::nothing, ""},
    {"chat", "--prompt-cache", Takes::value, "a conversation is kept with --session FILE"},
    {"chat", "--prompt-cache-all --prompt-cache-ro", Takes::nothing, "a conversation is kept with --session FILE"},
    {"chat", "--no-jinja", Takes::nothing, "chat templates are always rendered as Jinja: name another one with "
                                           "--chat-template"},
    {"chat", "--reasoning-format", Takes::value, "choose with --reasoning show, hide or off"},
    {"", "-sp --special", Takes::nothing, "special tokens are never printed: tandem tokenize shows them"},
    {"", "--verbose-prompt", Takes::nothing, "the tokens of a prompt are shown by tandem tokenize"},
    {"", "-ptc --print-token-count", Takes::value, ""},
    {"", "-cnv --conversation --jinja", Takes::nothing, ""},

    // threads
    {"", "-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb --cpu-range-batch", Takes::value, kAffinity},
    {"", "--cpu-strict --cpu-strict-batch --prio --prio-batch --poll --poll-batch", Takes::value, ""},

    // the cache and memory
    {"run chat", "-np --parallel", Takes::value, ""},
    {"", "-kvu --kv-unified", Takes::nothing, ""},
    {"", "--no-kv-unified", Takes::nothing, ""},
    {"", "--swa-full", Takes::nothing, ""},
    {"", "-ctxcp --ctx-checkpoints --swa-checkpoints", Takes::value, "states of recurrent layers are kept with "
                                                                     "--state-checkpoints"},
    {"", "-dt --defrag-thold", Takes::value, ""},
    {"", "-cram --cache-ram", Takes::value, ""},
    {"", "--cache-prompt --no-cache-prompt", Takes::nothing, ""},
    {"", "--cache-reuse", Takes::value, ""},
    {"", "--no-repack -nr --repack", Takes::nothing, ""},
    {"", "--no-host", Takes::nothing, ""},
    {"", "--op-offload --no-op-offload", Takes::nothing, ""},
    {"", "--check-tensors", Takes::nothing, ""},
    {"", "-dio --direct-io -ndio --no-direct-io", Takes::nothing, ""},
    {"", "-fitt --fit-target", Takes::value, "the memory to use is set with --max-vram and --max-ram"},
    {"", "-fitc --fit-ctx", Takes::value, "the context size is set with -c"},
    {"", "-bs --backend-sampling", Takes::nothing, ""},

    // messages
    {"", "-lv --verbosity --log-verbosity", Takes::value, ""},
    {"", "--log-colors", Takes::optional_value, ""},
    {"", "--log-prefix --no-log-prefix --log-timestamps --no-log-timestamps", Takes::nothing, ""},
    {"", "--no-perf --perf --warmup --no-warmup", Takes::nothing, ""},
};
// clang-format on

constexpr std::pair<std::string_view, std::string_view> kVariables[] = {
    {"batch-size", "LLAMA_ARG_BATCH"},    {"ubatch-size", "LLAMA_ARG_UBATCH"},
    {"parallel", "LLAMA_ARG_N_PARALLEL"}, {"rope-scaling", "LLAMA_ARG_ROPE_SCALING_TYPE"},
    {"log-file", "LLAMA_LOG_FILE"},
};

// Whether `word` is one of the blank-separated `words`.
bool contains(std::string_view words, std::string_view word) {
  for (size_t start = 0; start < words.size();) {
    const size_t end = std::min(words.find(' ', start), words.size());
    if (words.substr(start, end - start) == word) return true;
    start = end + 1;
  }
  return false;
}

}  // namespace

const LlamaFlag* find_llama_flag(std::string_view command, std::string_view flag) {
  const auto found = std::find_if(std::begin(kFlags), std::end(kFlags), [&](const LlamaFlag& f) {
    return (f.commands.empty() || contains(f.commands, command)) && contains(f.names, flag);
  });
  return found == std::end(kFlags) ? nullptr : found;
}

std::string_view llama_variable(std::string_view long_name) {
  for (const auto& [name, variable] : kVariables) {
    if (name == long_name) return variable;
  }
  return "";
}

}  // namespace tandem::tools
