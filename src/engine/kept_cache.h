// KeptCache: keeps what a runtime has computed of a text in a BlockStore, and loads it where a later text begins alike, in
// this process or another.
//
// Names. A text's blocks (kv_config().block_size tokens each) are named by a chain of SHA-256: a block's name is the hash
// of the name before it and of its tokens. The chain begins with a root, the hash of all that decides what is in a block:
//
// - the model: fingerprint() (metadata with overrides, tensor table, a sample of each tensor), and size, modification time
//   and change time of its files when they were opened. A file that was edited in place has another change time, which no
//   program can set; a copy of a model is another model, too.
// - rotation(): RoPE options, YaRN, and with LongRoPE the context
// - the shape and types of the cache of every layer, how its heads are rotated and read sparsely, the block size, and how many experts are deferred
// - a version, of the layout below
//
// Devices, placement, threads, instruction sets and micro-batches are not in it: by all of them a block is the same but for
// the last bits of its numbers, as with saved sessions. So a text may go on with other words than if it had all been
// computed here; it is an answer of this model just as much.
//
// What a block holds: of each layer with rows, its keys, then its values, [block_size, n_head_kv, head_dim] in the type of
// the cache (kv/rows.h), layer after layer. Models with recurrent layers also need the state after a block; it is kept where
// the sequence has a checkpoint at a block's end, and a text goes on from the last of its blocks that has one.
//
// The caches of draft models and MTP layers are not kept: a draft model reads the text itself, and an MTP layer sees the
// text from where it was computed.
//
// Belongs to the runtime's thread; store and runtime outlive it. load() throws what Runtime throws.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "kv/block_store.h"

namespace tandem {

class KeptCache {
 public:
  KeptCache(BlockStore& store, Runtime& runtime);

  BlockStore& store() { return store_; }

  // How many of the tokens the sequence, which has some of them already, would have after load(); 0 if no more than now.
  int64_t loadable(const KvSequence& sequence, std::span<const int32_t> tokens) const;
  // Extends the sequence by what is kept of the tokens, leaving at least the last one to compute, for its logits. The
  // sequence may first be cut back to the end of a block, and stays so if a block turns out to be damaged.
  void load(KvSequence& sequence, std::span<const int32_t> tokens);

  // Hands the whole blocks of the sequence, which are of these tokens, to the store. `when_busy` says what happens when its
  // thread has too much to write already.
  enum class WhenBusy { wait, leave_out };
  void keep(const KvSequence& sequence, std::span<const int32_t> tokens, WhenBusy when_busy);

 private:
  std::vector<Sha256> names(std::span<const int32_t> tokens) const;
  int64_t n_kept(std::span<const Sha256> names) const;
  bool load_blocks(KvSequence& sequence, std::span<const Sha256> names, int64_t first, int64_t& n);
  std::vector<std::byte> block_of(const KvSequence& sequence, int64_t block) const;
  std::vector<std::byte> state_of(int32_t slot) const;
  void write_block(const KvSequence& sequence, int64_t block, std::span<const std::byte> bytes);
  void write_state(const KvSequence& sequence, std::span<const std::byte> bytes);
  bool store_block(const Sha256& name, BlockKind kind, int64_t block, int64_t time_ns, WhenBusy when_busy,
                   const std::function<std::vector<std::byte>()>& bytes);

  struct Part {
    size_t layer;
    KvHalf half;
    size_t n_bytes;  // of a block's rows, or of a state
  };
  BlockStore& store_;
  Runtime& runtime_;
  int64_t block_size_;
  std::vector<Part> rows_, states_;
  size_t n_row_bytes_ = 0, n_state_bytes_ = 0;  // of all parts
  Sha256 root_;
  std::string model_;  // for people
};

}  // namespace tandem
