// Chains: the products of one token that follow each other, the norms in front of them, and the rotation and storing of queries, keys
// and values, in one launch. Of a model like Llama's: from the output of a layer's attention to the cache of the next layer.
//
// A kernel for each of them waits for the last block of the one before, then for its input, then for the first weights.
// In a chain the weights never wait: every warp has a ring of slots in shared memory and asks for its rows as long as a
// slot is free, also for those of the next products, while the grid waits for the results of the last.
//
//   stage    a product, or several of one input, with a norm before it or not. Between stages all blocks wait for each other
//   task     a pair of rows: two neighbours, or a row of the gate and the same row of the up matrix; or eight of these pairs
//   turn     up to 32 pieces (layout.h) of both rows of a task, one a lane; or 8 pieces of eight rows. What a slot has room for
//
// The tasks of a stage go to the blocks in turn, then to their warps. Every block makes the input of a stage for itself, from
// floats: the norm, the bytes that its weights want (quantize.h). Two kernels do this: chain.cuh, a warp for each pair, which has run
// on GPUs; and chain_tiles.cuh, eight pairs on the tensor cores with little more than half of the instructions, which has not yet.
//
// Floors (H100, 132 blocks, a layer of Llama 3.1 8B in Q4_K_M, 123 MB): the weights 41 us at 3 TB/s. Three waits for the grid,
// each two trips to the L2 cache, about 1.5 us; inputs from the L2 cache, 4 to 57 KB a block, 0.3 to 1.5 us. What the rings hold
// (16 warps * 5 slots of 1.7 KB: 136 KB a multiprocessor, 6 us of reading, more than all of the attention's output matrix) is asked
// for before these waits. GPUs with 99 KB of shared memory a block run half as many warps: 68 KB a multiprocessor are 9 us of an
// RTX 4090's bandwidth, 6 us of an RTX 5090's.
//
// A pair of rows of queries or keys is a pair of columns that are rotated, and the warp that has their sums rotates them; keys and
// values go to a cache of F16, BF16 or F32, and nowhere else. Blocks of other caches, and heads that are normalized before, have
// more columns than a warp has, and heads of more than 64 pairs more than the launch's parameters: a launch behind the chain.
//
// Attention has a kernel of its own. Where a kernel may begin before the last one ends (compute capability 9.0) and a multiprocessor has
// memory for both, the next chain's blocks fill their rings beside those of attention: 80 registers a thread leave room for them. In
// the chain itself it took its registers and was slower (FLOORS.md).
//
// The blocks of a grid, one a multiprocessor, must all run at once, whatever else the GPU does: another session's chain that had the
// other half of it would wait for ever, as this one. So a launch is cooperative: all of its blocks begin, or none.
#pragma once

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "ggml-cuda/handed_bytes.h"
#include "ggml-cuda/matvec.h"
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {

struct RopeKvCall;
struct RopeTable;

inline constexpr int kMaxChainWarps = 16;

// A product; without targets a norm alone.
struct ChainStage {
  MatvecTarget targets[kMaxMatvecWeights];  // first_block: the first of its tasks
  const float* x = nullptr;                 // [k]
  Activations encoded;                      // of x, where they are made before the chain
  PlainValues weight{}, bias{};             // [k], of the norm
  float* normalized = nullptr;              // [k]; null: no norm
  float eps = 0.0f;
  NormKind norm = NormKind::rms;
  MatvecMode mode = MatvecMode::linear;     // or glu
  Activation activation = Activation::silu;
  int k = 0, n_targets = 0, n_tasks = 0;
  // Where results are rotated (ChainRotation): the heads' columns and their pairs, and a bit for each target whose pairs of rows are
  // those of columns n_pairs apart.
  int head_dim = 0, n_pairs = 0;
  unsigned halves = 0;
};

inline constexpr int kChainStages = 6;  // at most; their parameters are 4 KB at most

// What an op does in a chain.
struct ChainNorm {
  TensorId reads, makes;
  ChainStage stage;  // x and the norm
};
struct ChainProducts {
  TensorId reads;
  const HandedBytes* bytes;  // what it may read instead
  std::vector<MatvecTarget> targets;
  MatvecMode mode = MatvecMode::linear;  // or glu
  Activation activation = Activation::silu;
  const float* x = nullptr;
};
struct ChainRope {  // of what the product before it makes
  const RopeKvCall* call;
  const RopeTable* table;
  RopeStyle style;
};
struct ChainPart {
  std::variant<ChainNorm, ChainProducts, ChainRope> work;
};

// How products are multiplied in chains. Those of floats by pairs of rows in any case.
enum class Chains : uint8_t {
  none,      // kernels of their own
  of_pairs,  // chain.cuh
  of_tiles,  // chain_tiles.cuh
};
// The environment's TANDEM_CUDA_CHAINS=0 asks for the first, =tiles for the last, to measure all.
Chains chains_wanted();

// Puts ops that make a chain into one that launches it for steps of one token, and them for others. After hand_bytes().
// is_present: the ops have addresses, on the current device, which is asked what it can do.
std::vector<CompiledOpPtr> make_chains(std::vector<CompiledOpPtr> ops, Chains chains, const Gpu& gpu, bool is_present);

}  // namespace tandem::cuda
