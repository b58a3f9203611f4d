#include "kv/spill.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/random_seed.h"
#include "base/setting.h"

namespace tandem {

KvSpill::KvSpill(const KvConfig& config, const std::string& folder, std::span<KvLayer> layers,
                 const BlockPool& pool, const OpenDisk& open)
    : pool_(pool),
      n_memory_(static_cast<int32_t>(config.n_memory_blocks)),
      parts_(2 * layers.size()),
      place_of_(static_cast<size_t>(pool.n_blocks()), -1),
      block_at_(static_cast<size_t>(pool.n_blocks()) + 1, -1),
      written_(static_cast<size_t>(pool.n_blocks())),
      folder_(folder) {
  lay_out(config, layers);
  try {
    make_file(folder, open);
  } catch (...) {
    if (mapped_) munmap(mapped_, n_file_bytes_);
    if (fd_ >= 0) close(fd_);
    throw;
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].n_spilled == 0) continue;
    layers[i].k_spilled = mapped_ + part(i, KvHalf::keys).offset;
    layers[i].v_spilled = mapped_ + part(i, KvHalf::values).offset;
  }
}

KvSpill::~KvSpill() {
  reader_.reset();
  munmap(mapped_, n_file_bytes_);
  close(fd_);
}

// A layer's keys and values are one piece each, in whole pages.
void KvSpill::lay_out(const KvConfig& config, std::span<KvLayer> layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!config.layers[i].has_rows()) continue;
    const KvLayer& layer = layers[i];
    for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
      Part& made = parts_[2 * i + (half == KvHalf::values)];
      made.n_bytes = kv_token_bytes(layer, half) * static_cast<size_t>(layer.block_size);
      made.pool = half == KvHalf::keys ? layer.k : layer.v;
      made.n_memory = static_cast<int32_t>(layer.n_blocks);
      made.offset = n_file_bytes_;
      n_file_bytes_ += align_up(made.n_bytes * static_cast<size_t>(layer.n_spilled), kDiskAlignment);
    }
  }
}

// It loses its name as soon as the reader has opened it too, which may do so in another way (O_DIRECT).
void KvSpill::make_file(const std::string& folder, const OpenDisk& open_disk) {
  const std::string path = format("{}/tandem-kv-{}-{:016x}", folder, getpid(), random_seed());
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd_ < 0) fail("cannot make a file there");
  try {
    if (ftruncate(fd_, static_cast<off_t>(n_file_bytes_)) != 0) fail("cannot make a file of this size there");
    void* mapped = mmap(nullptr, n_file_bytes_, PROT_NONE, MAP_SHARED, fd_, 0);
    if (mapped == MAP_FAILED) fail("cannot map a file there");
    mapped_ = static_cast<std::byte*>(mapped);
    reader_ = open_disk({DiskFile{path, {mapped_, n_file_bytes_}}});
  } catch (...) {
    unlink(path.c_str());
    throw;
  }
  if (unlink(path.c_str()) != 0) fail("cannot unlink the file there");
}

void KvSpill::fail(const char* what) const {
  throw_error(ErrorCode::io, "{}: {}: {}", setting_text(Setting::kv_spill, printable(folder_, 4096)), what,
              strerror(errno));
}

void KvSpill::load(const Part& p, int32_t place, std::byte* to) const {
  if (place < p.n_memory) {
    std::memcpy(to, p.pool + static_cast<size_t>(place) * p.n_bytes, p.n_bytes);
    return;
  }
  const uint64_t offset = p.offset + static_cast<uint64_t>(place - p.n_memory) * p.n_bytes;
  for (size_t done = 0; done < p.n_bytes;) {
    const ssize_t n = pread(fd_, to + done, p.n_bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENODATA;
    if (n <= 0) fail("cannot read the KV cache back");
    done += static_cast<size_t>(n);
  }
}

void KvSpill::store(const Part& p, int32_t place, const std::byte* from) {
  if (place < p.n_memory) {
    std::memcpy(p.pool + static_cast<size_t>(place) * p.n_bytes, from, p.n_bytes);
    return;
  }
  changed_ = true;
  const uint64_t offset = p.offset + static_cast<uint64_t>(place - p.n_memory) * p.n_bytes;
  for (size_t done = 0; done < p.n_bytes;) {
    const ssize_t n = pwrite(fd_, from + done, p.n_bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) fail("cannot write the KV cache");
    done += static_cast<size_t>(n);
  }
}

// A block that was at this place is nowhere afterwards.
void KvSpill::put(int32_t block, int32_t place) {
  int32_t& now = place_of_[static_cast<size_t>(block)];
  if (now >= 0) block_at_[static_cast<size_t>(now)] = -1;
  now = place;
  if (place >= 0) block_at_[static_cast<size_t>(place)] = block;
}

// To a free place, in all layers.
void KvSpill::move(int32_t block, int32_t to) {
  const int32_t from = place(block);
  for (const Part& p : parts_) {
    if (p.n_bytes == 0) continue;
    if (from < p.n_memory) {
      store(p, to, p.pool + static_cast<size_t>(from) * p.n_bytes);
    } else {
      load(p, from, p.pool + static_cast<size_t>(to) * p.n_bytes);
    }
  }
  put(block, to);
}

int32_t KvSpill::find_free(int32_t begin, int32_t end) const {
  return static_cast<int32_t>(std::find(block_at_.begin() + begin, block_at_.begin() + end, -1) -
                              block_at_.begin());
}

// A place in memory; if none is free, that of the block there that was written longest ago, but not in this step.
int32_t KvSpill::room_in_memory() {
  const int32_t free = find_free(0, n_memory_);
  if (free < n_memory_) return free;
  const auto when = [&](int32_t b) { return written_[static_cast<size_t>(b)]; };
  const auto memory = std::span(block_at_).first(static_cast<size_t>(n_memory_));
  const int32_t oldest = *std::ranges::min_element(memory, {}, when);
  TANDEM_CHECK(when(oldest) <= step_began_);
  const int32_t left = place(oldest);
  const int32_t to = find_free(n_memory_, static_cast<int32_t>(block_at_.size()));
  TANDEM_CHECK(to < static_cast<int32_t>(block_at_.size()));
  // Earlier ones have been read since, so they are on the disk and need no memory of the system.
  posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  move(oldest, to);
  return left;
}

void KvSpill::begin_step() {
  step_began_ = clock_;
  for (const int32_t block : std::vector<int32_t>(block_at_)) {
    if (block >= 0 && pool_.owners(block) == 0) put(block, -1);
  }
}

void KvSpill::bring(std::span<const int32_t> blocks, bool first_has_rows) {
  for (const int32_t block : blocks) {
    if (place(block) < 0 || place(block) >= n_memory_) {
      const int32_t to = room_in_memory();
      if (first_has_rows && block == blocks.front()) {
        move(block, to);
      } else {
        put(block, to);
      }
    }
    written_[static_cast<size_t>(block)] = ++clock_;
  }
}

void KvSpill::bring_back(std::span<const int32_t> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    if (place(blocks[i]) < n_memory_) continue;
    const int32_t to = find_free(0, n_memory_);
    if (to >= n_memory_) return;
    move(blocks[i], to);
  }
}

void KvSpill::read_block(size_t layer, KvHalf half, int32_t block, std::byte* to) const {
  TANDEM_CHECK(place(block) >= 0);
  load(part(layer, half), place(block), to);
}

// A session is loaded layer by layer: once a block has a place, all its rows go there.
void KvSpill::write_block(size_t layer, KvHalf half, int32_t block, const std::byte* from) {
  if (place(block) < 0) {
    step_began_ = clock_;
    put(block, room_in_memory());
    written_[static_cast<size_t>(block)] = ++clock_;
  }
  store(part(layer, half), place(block), from);
}

}  // namespace tandem
