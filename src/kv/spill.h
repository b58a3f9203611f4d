// KvSpill: the blocks of a cache that host memory has no room for, in a file that has no name, so that it is gone with the
// process. Each layer has places for blocks, of which the first are in memory and the others in the file (KvLayer::n_blocks and
// n_spilled); a block has the same place in every layer. Slots and block tables of a step name places instead of blocks.
//
// Blocks that a step writes are in memory; to make room, the block that was written longest ago goes to the file. They are moved
// as wholes, in all layers, because all layers need the same memory, and because what is read of a layer is then one piece.
// Steps read blocks in the file where they are (exec/kv_stream.h): attention reads all of a text for each token, so to bring one
// back to memory would only send another one away.
//
// Belongs to the thread of its cache. Throws Error(io); places then still tell where each block is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/disk_reader.h"
#include "kv/block_pool.h"
#include "kv/cache.h"
#include "kv/rows.h"

namespace tandem {

class KvSpill {
 public:
  // `layers`: the cache on the host, by layer; those that spill learn where they are in the file. The pool outlives this.
  KvSpill(const KvConfig& config, const std::string& folder, std::span<KvLayer> layers, const BlockPool& pool,
          const OpenDisk& open);
  ~KvSpill();
  KvSpill(const KvSpill&) = delete;
  KvSpill& operator=(const KvSpill&) = delete;

  // Reads what is in the file, by the addresses in the layers.
  DiskReader* reader() const { return reader_.get(); }
  // Whether a layer has blocks, which then move.
  bool has(size_t layer) const { return parts_[2 * layer].n_bytes > 0; }
  int32_t place(int32_t block) const { return place_of_[static_cast<size_t>(block)]; }

  // A step writes to the blocks given until the next call. Frees the places of blocks that are free.
  void begin_step();
  // Brings blocks that the step writes to memory. first_has_rows: the first one has rows that stay.
  void bring(std::span<const int32_t> blocks, bool first_has_rows);
  // Brings the last of these blocks back to memory, as far as there is room without sending others away.
  void bring_back(std::span<const int32_t> blocks);
  // Whether the file has been written since the last call.
  bool take_changed() { return std::exchange(changed_, false); }

  // The bytes of a block of a layer, wherever it is.
  void read_block(size_t layer, KvHalf half, int32_t block, std::byte* to) const;
  void write_block(size_t layer, KvHalf half, int32_t block, const std::byte* from);

 private:
  // Half of a layer. Places from n_memory on are in the file, from `offset` on.
  struct Part {
    size_t n_bytes = 0;  // of a block; 0: there is none
    DevicePtr pool = nullptr;
    int32_t n_memory = 0;
    uint64_t offset = 0;
  };
  void lay_out(const KvConfig& config, std::span<KvLayer> layers);
  void make_file(const std::string& folder, const OpenDisk& open);
  const Part& part(size_t layer, KvHalf half) const { return parts_[2 * layer + (half == KvHalf::values)]; }
  void load(const Part& part, int32_t place, std::byte* to) const;
  void store(const Part& part, int32_t place, const std::byte* from);
  void put(int32_t block, int32_t place);
  void move(int32_t block, int32_t place);
  int32_t find_free(int32_t begin, int32_t end) const;
  int32_t room_in_memory();
  [[noreturn]] void fail(const char* what) const;

  const BlockPool& pool_;
  int32_t n_memory_;
  std::vector<Part> parts_;        // [2 * layer] keys, then values
  std::vector<int32_t> place_of_;  // [block] -1: none yet
  std::vector<int32_t> block_at_;  // [place] -1: free
  std::vector<uint64_t> written_;  // [block] when a step has last written it
  uint64_t clock_ = 0, step_began_ = 0;
  bool changed_ = false;
  std::string folder_;
  size_t n_file_bytes_ = 0;
  int fd_ = -1;
  std::byte* mapped_ = nullptr;  // addresses for the reader; never touched
  std::unique_ptr<DiskReader> reader_;
};

}  // namespace tandem
