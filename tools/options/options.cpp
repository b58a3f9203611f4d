// The groups of options. Each option is one line of names, target and help; how values are read is in
// values.cpp, how arguments become calls in parse.cpp, how help looks in help.cpp.
#include "tools/options/options.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "plan/kv_formats.h"
#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/types.h"
#include "tools/overwrite.h"
#include "tools/statistics.h"

namespace tandem::tools {

void add_model_options(CLI::App& app, CommandOptions& command) {
  const char* group = "Model";
  ModelOptions& o = command.engine.model;
  text(app, "-m,--model", o.path, "FILE",
       "the GGUF file; of a split model, its first part; USER/REPO[:QUANT] as for -hf")
      .group(group);
  add_hub_options(app, command.hub, group);
  flag(app, "--mmap,!--no-mmap", o.open.mmap, "map the file instead of reading it into memory (default: on)")
      .group(group);
  flag(app, "--mlock", o.open.mlock, "lock the model in memory, so that it is never swapped out")
      .group(group);
  repeated(
      app, "--override-kv", "KEY=TYPE:VALUE",
      "replace a metadata value of the file; TYPE is int, float, bool or str; comma-separated or repeated",
      [&o](const std::vector<std::string>& values) {
        for (const std::string& value : values) {
          for (MetadataOverride& kv : parse_metadata_overrides(value)) o.overrides.push_back(std::move(kv));
        }
      })
      .group(group);
}

void add_context_options(CLI::App& app, ContextOptions& o, Toggle& flash_attention) {
  const char* group = "Context";
  integer(app, "-c,--ctx-size", o.n_ctx, 0,
          "context size in tokens; 0: the model's training context (default: that, or what memory holds)")
      .default_str("")
      .each([&o](const std::string&) { o.n_ctx_given = true; })
      .group(group);
  integer(app, "-b,--batch-size", o.n_batch, 1, "maximum prompt tokens per batch")
      .each([&o](const std::string&) { o.n_batch_given = true; })
      .group(group);
  integer(app, "--ubatch-size", o.n_ubatch, 1, "maximum tokens computed at once (micro-batch)")
      .default_str("512, for a mixture on the CPU up to 2048, for streamed prompts up to 8192")
      .each([&o](const std::string&) { o.n_ubatch_given = true; })
      .group(group);
  integer(app, "--state-checkpoints", o.n_state_checkpoints, 0,
          "states of recurrent layers to keep, so that a text that is cut back, or in a batch one that "
          "begins like "
          "another, is not processed again")
      .group(group);
  integer(
      app, "--defer-experts", o.n_deferred, 0,
      "of the experts that a token of a mixture chooses, let the N of the lowest rank join one layer later; "
      "lossy. The CPU computes them while a GPU computes attention")
      .group(group);
  const auto cache_type = [&app, &o, group](const char* names, const char* option, DType& target,
                                            const char* help) {
    choice(app, names, "TYPE", help, "f16", [option, &target, &o](const std::string& value) {
      target = parse_cache_type(option, value);
      o.kv_dtype_given = true;
    }).group(group);
  };
  cache_type("--cache-type-k", "--cache-type-k", o.k_dtype,
             "type of cached keys: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, kivi4 or kivi2");
  cache_type("--cache-type-v", "--cache-type-v", o.v_dtype,
             "type of cached values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, kivi4 or kivi2");
  choice(app, "--kv-type-layers", "LAYERS=TYPE,...",
         "types of the cache of some layers, N, N-M or N- (to the last), with another one for values after a "
         "slash: 0-3=q8_0/q4_0,4-=q4_0",
         "",
         [&o](const std::string& value) {
           o.kv_type_layers = parse_kv_type_layers(value);
           o.kv_dtype_given = true;
         })
      .group(group);
  choice(
      app, "--kv-rotate", "on|off|auto",
      "rotate heads by a Hadamard matrix before they are cached, so that few bits lose less; auto: those of "
      "4-bit types",
      "off", [&o](const std::string& value) { o.kv_rotate = parse_toggle("--kv-rotate", value); })
      .group(group);
  add_sparse_option(app, o, group);
  add_spill_options(app, o, group);
  bare_choice(
      app, "--flash-attn", "on|off|auto", "on", "always on (default: auto)",
      [&flash_attention](const std::string& value) { flash_attention = parse_toggle("--flash-attn", value); })
      .group(group);
}

void note_no_effect(const CommandOptions& o) {
  if (o.flash_attention == Toggle::off) {
    log_verbose("--flash-attn off has no effect: flash attention is the only implementation");
  }
  warn_of_threads(std::max(o.engine.devices.n_threads, o.engine.devices.n_threads_batch));
}

void warn_of_threads(int32_t n_threads) {
  const auto n_processors = static_cast<int32_t>(std::thread::hardware_concurrency());
  if (n_processors > 0 && n_threads > n_processors) {
    log_warning("{} threads take turns on {}: fewer are faster", n_threads,
                counted(n_processors, "processor"));
  }
}

// The usual ways to write "as the model says": 0, and for some of YaRN's numbers anything below.
static std::optional<float> unless_zero(float x) {
  return x == 0.0f ? std::nullopt : std::optional(x);
}
static std::optional<float> unless_negative(float x) {
  return x < 0.0f ? std::nullopt : std::optional(x);
}

void add_sparse_option(CLI::App& app, ContextOptions& o, const char* group) {
  choice(
      app, "--sparse-kv", "R,K",
      "when generating, read K positions of a cache in host memory instead of all, chosen by R components of "
      "its keys, and the newest and first; lossy, faster in long contexts, and the cache takes more memory",
      "", [&o](const std::string& value) { o.sparse_kv = parse_sparse_kv(value); })
      .group(group);
}

void add_spill_options(CLI::App& app, ContextOptions& o, const char* group) {
  choice(
      app, "--kv-memory", "SIZE|auto",
      "most host memory for the KV cache; the older part of it is in a file in the folder of --kv-spill, and "
      "read from there for each token, ahead of use; auto: all is in memory",
      "auto",
      [&o](const std::string& value) {
        o.kv_memory.reset();
        if (value != "auto") o.kv_memory = parse_bytes("--kv-memory", value);
      })
      .group(group);
  choice(app, "--kv-spill", "DIR|off", "folder on a fast disk for what --kv-memory leaves no room for", "off",
         [&o](const std::string& value) { o.kv_spill = value == "off" ? "" : value; })
      .group(group);
}

void add_rope_options(CLI::App& app, RopeOverrides& o) {
  const char* group = "Context";
  choice(app, "--rope-scaling", "none|linear|yarn", "scaling of positions beyond the training context", "",
         [&o](const std::string& value) {
           o.scaling = one_of<RopeScaling>(
               "--rope-scaling", value,
               {{"none", RopeScaling::none}, {"linear", RopeScaling::linear}, {"yarn", RopeScaling::yarn}});
         })
      .group(group);
  const auto real_option = [&app, group](const char* names, const char* help, double min,
                                         std::function<void(float)> set) {
    optional_real(app, names, min, help, std::move(set)).group(group);
  };
  const double any = -std::numeric_limits<double>::infinity();
  real_option("--rope-scale", "stretch the context by this factor", std::numeric_limits<float>::min(),
              [&o](float n) { o.freq_scale = unless_zero(1.0f / n); });
  real_option("--rope-freq-base", "base frequency of RoPE, 0: the model's", 0,
              [&o](float n) { o.freq_base = unless_zero(n); });
  real_option("--rope-freq-scale", "scale of RoPE frequencies, 1/N for --rope-scale N, 0: the model's", 0,
              [&o](float n) { o.freq_scale = unless_zero(n); });
  choice(app, "--yarn-orig-ctx", "N", "YaRN: original training context, 0: the model's", "",
         [&o](const std::string& value) {
           o.n_ctx_orig = parse_integer("--yarn-orig-ctx", value, 0);
           if (*o.n_ctx_orig == 0) o.n_ctx_orig.reset();
         })
      .group(group);
  real_option("--yarn-ext-factor", "YaRN: share of extrapolation", any,
              [&o](float n) { o.ext_factor = unless_negative(n); });
  real_option("--yarn-attn-factor", "YaRN: scale of the attention's magnitude", any,
              [&o](float n) { o.attn_factor = unless_negative(n); });
  real_option("--yarn-beta-slow", "YaRN: upper correction dimension", any,
              [&o](float n) { o.beta_slow = unless_negative(n); });
  real_option("--yarn-beta-fast", "YaRN: lower correction dimension", any,
              [&o](float n) { o.beta_fast = unless_negative(n); });
  integer(app, "--grp-attn-n", o.self_extend.factor, 1,
          "SelfExtend: texts up to N times as long as the model was trained with, by grouping N positions of "
          "what is far from a token; 1: off")
      .group(group);
  integer(
      app, "--grp-attn-w", o.self_extend.neighbours, 1,
      "SelfExtend: tokens before each one that it sees at their true distance, a multiple of --grp-attn-n")
      .group(group);
}

void add_thread_options(CLI::App& app, DeviceOptions& o) {
  const char* group = "Threads";
  integer(app, "-t,--threads", o.n_threads, -1, "threads for generation, -1: one per physical core")
      .group(group);
  integer(app, "--threads-batch", o.n_threads_batch, -1, "threads for prompts, -1: as --threads")
      .group(group);
  add_numa_option(app, o, group);
  text(app, "--isa", o.isa, "scalar|avx2|avx_vnni|avx512|avx512_vnni|avx512_vbmi|avx512_bf16|avx512_amx",
       "instruction set of the CPU's kernels, for comparison (default: the best that the machine has)")
      .group(group);
}

void add_numa_option(CLI::App& app, DeviceOptions& o, const char* group) {
  bare_choice(app, "--numa", "auto|distribute|isolate|numactl|off", "distribute",
              "on a machine of several memory nodes: divide threads and weights over all (which copies the "
              "model into memory), "
              "stay on one node, or keep what numactl set (default: auto: distribute, where there is no GPU)",
              [&o](const std::string& value) {
                o.numa = one_of<Numa>("--numa", value,
                                      {{"auto", Numa::automatic},
                                       {"distribute", Numa::distribute},
                                       {"isolate", Numa::isolate},
                                       {"numactl", Numa::numactl},
                                       {"off", Numa::none}});
              })
      .group(group);
}

void add_text_options(CLI::App& app, TextOptions& o) {
  const char* group = "Input and output";
  text(app, "-p,--prompt", o.prompt, "TEXT", "text to continue").group(group);
  text(app, "-f,--file", o.file, "FILE",
       "read the text to continue, or its part after -p, from this file (at most 1 GiB, from a pipe or a "
       "device 64 MiB); - for stdin, which is also read if there is no prompt")
      .group(group);
  flag(app, "-e,--escape,!--no-escape", o.escape,
       "interpret \\n, \\t, \\\\, \\\", \\', \\xNN in -p and -r (default: on)")
      .group(group);
  integer(app, "-n,--n-predict,--predict", o.n_predict, -2,
          "tokens to generate, -1: no limit, -2: until the context is full")
      .group(group);
  integer(app, "--keep", o.keep, -1, "prompt tokens to keep when the context is full, -1: all").group(group);
  repeated(app, "-r,--reverse-prompt", "TEXT", "stop after this text; repeatable",
           [&o](const std::vector<std::string>& values) { o.reverse_prompts = values; })
      .group(group);
  flag(app, "--display-prompt,!--no-display-prompt", o.display_prompt,
       "print the prompt before the generated text (default: on)")
      .group(group);
  bare_choice(app, "--color", "on|off|auto", "on", "color the prompt (default: auto, on a terminal)",
              [&o](const std::string& value) { o.color = parse_toggle("--color", value); })
      .group(group);
  flag(app, "--simple-io", o.simple_io, "print no colors and no control sequences").group(group);
  flag(app, "--json", o.json, "print one JSON object per event on stdout instead of the text").group(group);
  add_logprobs_option(app, o, group);

  ignored_flag(app, "--no-conversation", "always in effect");
  ignored_flag(app, "--single-turn", "always in effect");
  ignored_flag(app, "--warmup,--no-warmup", "nothing to warm up");
  ignored_flag(app, "--perf,--no-perf", "statistics always go to stderr");
}

void add_logprobs_option(CLI::App& app, TextOptions& o, const char* group) {
  integer(app, "--logprobs", o.n_logprobs, -1,
          "with --json, also report each token's log probability and the N most likely tokens, -1: off")
      .group(group);
}

void check_logprobs(const TextOptions& o) {
  if (o.n_logprobs >= 0 && !o.json)
    throw_error(ErrorCode::usage, "--logprobs needs --json, whose events report the log probabilities");
}

void add_log_options(CLI::App& app, LogOptions& o) {
  const char* group = "Logging";
  flag(app, "-v,--verbose,--log-verbose", o.verbose, "print all messages on stderr").group(group);
  flag(app, "--log-disable", o.disable, "print no messages except the error that ends the program")
      .group(group);
  text(app, "--log-file", o.file, "FILE", "also append messages to this file").group(group);
}

void apply_log_options(const LogOptions& o) {
  if (!o.file.empty()) {
    check_log_file(o.file);
    set_log_file(o.file);
  }
  set_log_level(o.disable ? LogLevel::quiet : o.verbose ? LogLevel::verbose : LogLevel::info);
}

}  // namespace tandem::tools
