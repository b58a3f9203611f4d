// The cases that `tandem bench` measures: every combination of lists of parameters.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gguf/dtype.h"

namespace tandem::tools {

inline constexpr int32_t kAutoGpuLayers = -1;   // as many as fit
inline constexpr int32_t kAllGpuLayers = 9999;  // more than any model has

// One row of the result: a prompt of n_prompt tokens, then n_gen tokens one by one, after n_depth tokens that
// are in the cache already.
struct BenchCase {
  std::string model;
  bool mmap = true;
  DType type_k = DType::F16, type_v = DType::F16;
  int32_t n_batch = 2048, n_ubatch = 512;
  int32_t n_threads = 0;
  std::string isa;  // of the CPU's kernels; empty: the best
  int32_t n_gpu_layers = kAutoGpuLayers;
  bool no_kv_offload = false;
  int32_t n_prompt = 0, n_gen = 0, n_depth = 0;

  int64_t n_tokens() const { return int64_t{n_prompt} + n_gen; }
  // Prompt tokens per step.
  int64_t step_size() const { return n_batch < n_ubatch ? n_batch : n_ubatch; }
};

// "pp512", "tg128", "pp512+tg128", "tg128 @ d4096"
std::string test_name(const BenchCase& c);

// Every list has at least one value, except prompt_gen.
struct BenchLists {
  std::vector<std::string> model;
  std::vector<bool> mmap{true};
  std::vector<DType> type_k{DType::F16}, type_v{DType::F16};
  std::vector<int32_t> n_batch{2048}, n_ubatch{512};
  std::vector<int32_t> n_threads;
  std::vector<std::string> isa{""};
  std::vector<int32_t> n_gpu_layers{kAutoGpuLayers};
  std::vector<bool> no_kv_offload{false};
  std::vector<int32_t> n_prompt{512}, n_gen{128}, n_depth{0};
  std::vector<std::pair<int32_t, int32_t>> prompt_gen;
};

// All combinations of the lists: for each set of parameters the prompts, then the generations, then the
// pairs. Skips tests of 0 tokens. Throws Error(usage) for no test or too many.
std::vector<BenchCase> make_cases(const BenchLists& lists);

// Parses "512", "1,2,4", "1-4" (1 2 3 4), "128-512+128" (128 256 384 512), "1-8*2" (1 2 4 8), and lists of
// these. Throws Error(usage) that names `option`, also for values below `min`.
std::vector<int32_t> parse_ranges(const std::string& option, const std::string& text, int32_t min);

// The minimum of bytes to read per token: every step reads the weights once, and the cache as filled at its
// end. `weights`: Model::bytes_read_per_token(); `kv`: cache bytes per token.
double bytes_read_per_token(const BenchCase& c, size_t weights, size_t kv);

}  // namespace tandem::tools
