// The user's options for the size of a session and the placement. The planner chooses what is not set.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/toggle.h"
#include "exec/expert_use.h"
#include "gguf/dtype.h"
#include "graph/ops.h"

namespace tandem {

// Types of the cache of layers `first` to `last`.
struct KvTypeRange {
  int64_t first = 0;
  std::optional<int64_t> last;  // none: the last layer
  DType k = DType::F16, v = DType::F16;

  bool operator==(const KvTypeRange&) const = default;
};

// The size of a session. Together with the placement, it determines how much memory the session takes.
struct ContextOptions {
  // Tokens of context, of all sequences together. 0: the model's training context if n_ctx_given, otherwise
  // automatic: as many as memory holds (plan/context_fit.h).
  int64_t n_ctx = 0;
  int64_t n_ubatch = 0;  // maximum tokens in one step; 0: automatic_ubatch() of plan/session_plan.h
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  std::vector<KvTypeRange> kv_type_layers;  // layers whose cache has other types (plan/kv_formats.h)
  // Rotate heads before they are cached (graph/hadamard.h); automatic: those of 4-bit types.
  Toggle kv_rotate = Toggle::off;
  // Where decoding reads caches in host memory: some positions instead of all (lossy; graph/ops.h).
  SparseReads sparse_kv;
  // Most bytes of host memory for the cache; older blocks are in a file in the folder kv_spill. None: all of it is in memory.
  std::optional<size_t> kv_memory;
  std::string kv_spill;     // empty: none
  bool all_logits = false;  // reserve logits for every token of a step
  int64_t n_draft = 0;      // guesses that a step may check beside its token (speculate/speculation.h)
  // Of a token's experts, those of the lowest rank whose sum joins one layer later (lossy; graph/graph.h).
  int64_t n_deferred = 0;
  int64_t n_sequences = 1;     // maximum sequences in one step; at most one per block of the cache
  int64_t n_ctx_sequence = 0;  // maximum tokens of one sequence; 0: n_ctx
  // States of recurrent layers to keep besides the current one, for cutting a text back without processing it
  // again from its start.
  int64_t n_state_checkpoints = 8;
  // Upper bound of n_ubatch, as in llama.cpp; where prompts are streamed, the planner passes it if it is not given.
  int64_t n_batch = 2048;
  LatentForm latent_form = LatentForm::cheaper;
  bool keeps_hidden = false;  // steps return what they made of every token (Session::on_hidden)
  // Set by the user: the planner keeps it. Otherwise it may choose another context if that is 0, and, if it
  // knows the devices' speeds, another micro-batch or cache type.
  bool n_ctx_given = false, n_batch_given = false, n_ubatch_given = false, kv_dtype_given = false;
  // Bounds of an automatic context. Less than min_ctx tokens if weights then stay in faster memory; where no
  // context keeps them there, they are moved for min_ctx tokens only. 0: 4096 and the training context.
  int64_t min_ctx = 0, max_ctx = 0;

  bool is_automatic() const { return n_ctx <= 0 && !n_ctx_given; }
};

// Everything on the main GPU; whole layers on each; or each layer over all of them (exec/tensor_parallel.h). automatic: what
// takes the least predicted time; whole layers where speeds are not known.
enum class SplitMode { automatic, none, layer, tensor };

// Memory that a placement may take. Nothing set: the free memory, less a reserve.
struct Budgets {
  std::optional<size_t> max_vram;          // bytes of each GPU, including its driver's
  std::optional<size_t> max_ram;           // bytes of host memory, including mapped weights
  std::optional<double> vram_utilization;  // share of each GPU's memory, including other programs' use
  // Bytes of each GPU that its driver and libraries take beside our allocations.
  size_t vram_overhead = size_t{256} << 20;
};

struct OffloadOptions {
  // Number of layers on GPUs: the last N of the model; one more than it has layers includes the output head.
  std::optional<int64_t> n_gpu_layers;
  Toggle kv_on_host = Toggle::automatic;
  bool kv_prefetched = false;       // keep the cache in host memory, copy it to the GPU for every step
  std::optional<int64_t> kv_split;  // keep the newest N tokens' cache on the GPU, the rest in host memory
  std::optional<int64_t> n_kv_layers_gpu;  // of the layers on GPUs, only the last N keep their cache there
  // Regex of tensor names, device name; the first match wins.
  std::vector<std::pair<std::string, std::string>> tensor_overrides;
  std::optional<int64_t> n_cpu_moe;  // the experts of the first N layers stay on the host
  // At most so many bytes of each GPU for experts that it keeps of layers whose experts the host holds or reads from disk; 0:
  // none. Not set: the planner chooses.
  std::optional<size_t> expert_cache;
  SplitMode split_mode = SplitMode::automatic;
  std::vector<double> tensor_split;   // share of each GPU; empty: by free memory
  int64_t main_gpu = 0;               // where everything is on one: index among the GPUs
  Toggle stream = Toggle::automatic;  // of layers whose weights are in host memory
  // Two other ways to set how much stays on the GPUs; the rest is streamed.
  std::optional<double> gpu_weights_percent;
  std::optional<double> cpu_offload_gib;  // weights in host memory
  // Read layers that do not fit in host memory from disk for every step. on: an error if that is impossible.
  Toggle disk = Toggle::automatic;
  // Of the matrices in host memory, the share of rows that GPUs compute while the CPU computes the others;
  // 1: no division.
  std::optional<double> gpu_rows;
  // Page-lock weights that GPUs fetch often (exec/pinned_weights.h). automatic: if all that the host needs fits in its memory.
  Toggle pin = Toggle::automatic;
  // Move what the CPU computes with to huge pages (exec/huge_weights.h). automatic: likewise, once texts are long.
  Toggle huge_pages = Toggle::automatic;
  bool huge_pages_at_once = false;  // automatic, but not only once texts are long
  Budgets budgets;
  std::shared_ptr<const ExpertUse> expert_use;  // of earlier runs; null: not known
  bool choose_by_speed = true;   // choose the rest by predicted speed; false: as much as fits on GPUs
  bool may_quantize_kv = false;  // the choice may be a quantized cache, which is not lossless
};

}  // namespace tandem
