#include "kv/hot_cache.h"

#include <algorithm>
#include <exception>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "device/kv_index.h"

namespace tandem {
namespace {

// A block of one half of a layer's cache, as it is stored; place: among the open blocks, or -1.
struct BlockAt {
  BlockAt(const KvLayer& layer, KvHalf half, int32_t block, int32_t place) {
    const bool keys = half == KvHalf::keys;
    const DType dtype = keys ? layer.k_dtype : layer.v_dtype;
    const bool open = is_kivi(dtype) && place >= 0;
    n_bytes = row_bytes(open ? DType::F16 : dtype, keys ? layer.head_dim_k : layer.head_dim_v) *
              static_cast<size_t>((keys ? layer.n_head_k() : layer.n_head_kv) * layer.block_size);
    const DevicePtr pool = open ? (keys ? layer.k_open : layer.v_open) : (keys ? layer.k : layer.v);
    address = pool + static_cast<size_t>(open ? place : block) * n_bytes;
  }
  DevicePtr address;
  size_t n_bytes;
};

}  // namespace

int64_t hot_block_count(const KvConfig& config, int64_t n_keep, int64_t n_ubatch) {
  const int64_t whole = ceil_div(config.n_ctx, config.block_size);
  if (config.is_grouped()) n_keep = std::max(n_keep, kKiviWindow);
  if (n_keep >= config.n_ctx) return whole;
  return std::min(whole, ceil_div(n_keep + n_ubatch - 1, config.block_size) + 1);
}

int64_t hot_from_of(const KvConfig& config, int64_t n_hot_blocks, int64_t n_tokens) {
  return std::max<int64_t>(0, ceil_div(n_tokens, config.block_size) - n_hot_blocks) * config.block_size;
}

HotCache::HotCache(KvCache& cache, int64_t n_keep)
    : cache_(cache),
      pool_(cache.hot().n_blocks),
      n_keep_(cache.open_groups() ? std::max(n_keep, kKiviWindow) : n_keep),
      block_size_(cache.config().block_size) {}

void HotCache::say_blocks() {
  if (cache_.open_groups()) cache_.set_hot_blocks(host_, blocks_);
}

// Drops the blocks past a length that the sequence was truncated to.
void HotCache::drop_from(int64_t length) {
  const int64_t n_blocks = ceil_div(length, block_size_);
  while (!blocks_.empty() && first_block() + static_cast<int64_t>(blocks_.size()) > n_blocks) {
    pool_.release(blocks_.back());
    blocks_.pop_back();
    host_.pop_back();
  }
  if (blocks_.empty()) from_ = std::min(from_, n_blocks * block_size_);
  say_blocks();
}

void HotCache::append(const KvSequence& sequence, int64_t n, int32_t* slots) {
  const int64_t length = sequence.length() - n;  // before the append
  drop_from(length);
  const auto n_blocks = static_cast<int64_t>(sequence.blocks().size());
  const int64_t first = std::max<int64_t>(0, n_blocks - pool_.n_blocks());
  TANDEM_CHECK(first * block_size_ <= length);
  if (first_block() < first) move_out_first(static_cast<size_t>(first - first_block()));
  const int64_t wanted = std::max(first, std::max<int64_t>(0, length - n_keep_) / block_size_);
  if (first_block() > wanted) bring_back_from(sequence, wanted);
  while (first_block() + static_cast<int64_t>(blocks_.size()) < n_blocks) {
    host_.push_back(sequence.blocks()[static_cast<size_t>(first_block()) + blocks_.size()]);
    blocks_.push_back(pool_.take());
  }
  say_blocks();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t p = length + i - from_;
    slots[i] = static_cast<int32_t>(blocks_[p / block_size_] * block_size_ + p % block_size_);
  }
}

void HotCache::move_out_first(size_t n) {
  copy(std::span(host_).first(n), std::span(blocks_).first(n), Way::out);
  for (size_t i = 0; i < n; ++i) pool_.release(blocks_[i]);
  blocks_.erase(blocks_.begin(), blocks_.begin() + n);
  host_.erase(host_.begin(), host_.begin() + n);
  from_ += static_cast<int64_t>(n) * block_size_;
  say_blocks();
}

void HotCache::bring_back_from(const KvSequence& sequence, int64_t block) {
  const auto n = static_cast<size_t>(first_block() - block);
  const std::span<const int32_t> host = sequence.blocks().subspan(block, n);
  std::vector<int32_t> taken;
  try {
    while (taken.size() < n) taken.push_back(pool_.take());
    copy(host, taken, Way::back);
  } catch (...) {
    for (int32_t b : taken) pool_.release(b);
    throw;
  }
  blocks_.insert(blocks_.begin(), taken.begin(), taken.end());
  host_.insert(host_.begin(), host.begin(), host.end());
  from_ = block * block_size_;
}

// Copies blocks of all layers between host[i] and hot[i]. Issues all copies, then waits for them.
void HotCache::copy(std::span<const int32_t> host, std::span<const int32_t> hot, Way way) {
  for (size_t layer = 0; layer < cache_.config().layers.size(); ++layer) {
    const std::optional<GpuId> gpu = cache_.hot().gpu(layer);
    if (!gpu) continue;
    const KvLayer& there = cache_.layers()[gpu->index()][layer];
    const KvLayer& here = cache_.layers()[0][layer];
    for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
      for (size_t i = 0; i < host.size(); ++i) {
        const int32_t place = cache_.open_groups() ? cache_.open_groups()->places()[host[i]] : -1;
        const BlockAt near(here, half, host[i], place), far(there, half, hot[i], place);
        if (near.n_bytes == 0) break;  // no values
        if (way == Way::out) {
          cache_.device(*gpu).copy_out(near.address, far.address, near.n_bytes);
        } else {
          cache_.device(*gpu).copy_in(far.address, near.address, near.n_bytes);
        }
      }
    }
  }
  finish_copies();
  if (way == Way::out) index_blocks(host);
}

// The host's part has an index.
void HotCache::index_blocks(std::span<const int32_t> blocks) {
  for (size_t layer = 0; layer < cache_.config().layers.size(); ++layer) {
    const KvLayer& here = cache_.layers()[0][layer];
    if (!here.indexed || !cache_.hot().gpu(layer)) continue;
    for (const int32_t block : blocks) index_block(here, block, here.block_size);
  }
}

// Waits for the other devices even if one fails, so that nothing writes to host memory afterwards.
void HotCache::finish_copies() {
  const std::vector<std::optional<GpuId>>& gpus = cache_.hot().gpu_of_layer;
  std::exception_ptr failure;
  for (const std::optional<GpuId>& gpu : std::set(gpus.begin(), gpus.end())) {
    if (!gpu) continue;
    try {
      cache_.device(*gpu).wait(cache_.device(*gpu).record());
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void HotCache::read_rows(const KvSequence& sequence, size_t layer, KvHalf half, std::byte* rows) const {
  const std::optional<GpuId> gpu = cache_.hot().gpu(layer);
  const int64_t n_cold = gpu ? std::min(from_, sequence.length()) : sequence.length();
  const int64_t n_hot = sequence.length() - n_cold;
  const KvLayer& host = cache_.layers()[0][layer];
  read_kv_rows(cache_.device(DeviceId::host()), host, half, sequence.blocks(), n_cold, rows);
  if (n_hot == 0) return;
  read_kv_rows(cache_.device(*gpu), cache_.layers()[gpu->index()][layer], half, blocks_, n_hot,
               rows + static_cast<size_t>(n_cold) * kv_token_bytes(host, half));
}

void HotCache::read_block(const KvSequence& sequence, int64_t block, size_t layer, KvHalf half,
                          int64_t n_tokens, std::byte* rows) const {
  const std::optional<GpuId> gpu = cache_.hot().gpu(layer);
  const bool is_hot = gpu && block >= first_block();
  const KvLayer& at = cache_.layers()[is_hot ? gpu->index() : 0][layer];
  const int32_t pool_block = is_hot ? blocks_[block - first_block()] : sequence.blocks()[block];
  read_kv_rows(cache_.device(is_hot ? DeviceId(*gpu) : DeviceId::host()), at, half, std::span(&pool_block, 1),
               n_tokens, rows);
}

void HotCache::hand_back(const KvSequence& sequence) {
  drop_from(sequence.length());
  move_out();
  forget();
}

void HotCache::forget() {
  for (int32_t block : blocks_) pool_.release(block);
  blocks_.clear();
  host_.clear();
  say_blocks();
  from_ = ceil_div(cache_.config().n_ctx, block_size_) * block_size_;
}

void HotCache::move_out() {
  move_out_first(blocks_.size());
}

}  // namespace tandem
