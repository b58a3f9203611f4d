// BlockStore: a folder of computed blocks of the KV cache, each in a file of its own, so that any later run that reads the
// same tokens with the same model loads them. What a name stands for is up to engine/kept_cache.h; here it is 32 bytes.
//
//   NAME.rows, NAME.state   complete blocks (block_file.h); NAME is 64 hexadecimal digits
//   tmp-RANDOM-N            one that is being written; removed when it is old
//   tandem-kv.lock          says that the folder is a store; held (flock) while old blocks are removed
//
// - A folder that has other files and no lock file is refused: removing blocks must never touch what is not ours. The
//   folder is made with mode 0700 and files with 0600, because a cache tells the text that it was computed from.
// - A block appears under its name complete (rename), so a killed process leaves at most a tmp-* file. It is not synced:
//   what a power failure tears is found by its checksum. Whatever is damaged is removed and counts as missing.
// - Several processes may use a folder. Readers take no lock: an open file stays readable when it is removed. Two that
//   write the same block write the same thing.
// - A file's modification time is when the block was last used, less a microsecond for each block before it in its text:
//   of one text, the end is the oldest. The oldest go when all are larger than max_bytes, down to 90% of that. Who writes
//   counts what it writes; it looks at what others wrote each time it has written 1/16 of max_bytes.
// - Blocks are written by a thread, so that no token waits. At most 64 MiB (or one block) wait for it.
// - What is written or read is in the system's file cache: that is the store's part in host memory, which the system gives
//   up when programs need the room.
//
// One thread uses an object. The constructor throws Error(usage) for a folder that is something else, Error(io) for one
// that cannot be made or read. After that nothing fails: a folder that cannot be written gives one warning.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kv/block_file.h"

namespace tandem {

// What a folder holds of one model and cache type.
struct StoredModel {
  Sha256 root{};
  std::string model;
  int64_t n_blocks = 0, n_states = 0;
  uint64_t n_bytes = 0;
  int64_t used_s = 0;  // since 1970, the newest
};

class BlockStore {
 public:
  static constexpr uint64_t kDefaultBytes = uint64_t{10} << 30;

  explicit BlockStore(std::string folder, uint64_t max_bytes = kDefaultBytes);
  // Waits until all is written.
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  const std::string& folder() const { return folder_; }
  uint64_t max_bytes() const { return max_bytes_; }

  bool has(const Sha256& name, BlockKind kind) const;
  // The bytes of a block, if it is there, sound, and has n_bytes.
  std::optional<std::vector<std::byte>> read(const Sha256& name, BlockKind kind, size_t n_bytes);

  // When a text was used, for write() and touch().
  struct Use {
    int64_t time_ns = 0;  // since 1970
    int64_t block = 0;    // number of blocks before it in the text
  };
  static int64_t now_ns();
  void touch(const Sha256& name, BlockKind kind, Use use) const;

  // False when writing has failed before; there is no need to bring more.
  bool takes_blocks();
  // Whether the thread can take n_bytes without a wait.
  bool has_room(size_t n_bytes);
  // Hands a block to the thread; waits for room. The header's checksum and number of bytes are set here.
  void write(BlockHeader header, std::vector<std::byte> bytes, Use use);
  // Waits until all is written.
  void flush();

  struct Counts {
    int64_t n_read = 0, n_damaged = 0, n_written = 0, n_removed = 0;
    uint64_t read_bytes = 0, written_bytes = 0;
  };
  Counts counts();

  // All that the folder holds, by root.
  std::vector<StoredModel> contents() const;
  // Removes the blocks of these roots; of all, without any. Returns the bytes that are free again.
  uint64_t remove(const std::vector<Sha256>& roots);

 private:
  struct Job {
    BlockHeader header;
    std::vector<std::byte> bytes;
    Use use;
  };
  struct Entry;

  std::string path_of(const Sha256& name, BlockKind kind) const;
  void write_jobs();
  void write_file(const Job& job);
  void stop_writing(const std::string& why);
  void make_room(uint64_t n_bytes);
  std::vector<Entry> entries() const;

  std::string folder_;
  uint64_t max_bytes_;
  uint64_t temporary_id_;  // process numbers may be those of other machines that share the folder
  // Of the thread that writes.
  uint64_t n_bytes_ = 0;       // in the folder when it last looked, and what it wrote since
  uint64_t n_since_look_ = 0;  // of those
  bool has_looked_ = false;
  uint64_t n_files_ = 0;       // temporary names so far

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first one is being written
  size_t n_waiting_bytes_ = 0;
  bool stops_ = false, failed_ = false;
  Counts counts_;
  std::thread thread_;  // from the first block on
};

// Makes the folder if there is none, and marks an empty one as a store. Throws as the constructor does.
void prepare_block_store(const std::string& folder);

}  // namespace tandem
