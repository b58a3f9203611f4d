// KvCache: for every layer two pools of blocks, one of keys and one of values, on the device that the
// placement names; for a split cache two more, for its hot cache. Owns that memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/disk_reader.h"
#include "device/cache_dtypes.h"
#include "device/device.h"
#include "gguf/kivi.h"
#include "graph/column_runs.h"
#include "kv/block_pool.h"
#include "kv/open_groups.h"

namespace tandem {

// The cache of a layer holds n_head_kv rows of head_dim_k and of head_dim_v elements per token. A head_dim_v of 0:
// there are no values beside the keys, whose first columns are read as values (AttentionParams). The cache of a
// recurrent layer has no rows per token, but states of n_conv and n_recurrence floats, one in each state slot; either
// may be 0. All 0: the layer caches nothing.
struct KvShape {
  int64_t n_head_kv = 0, head_dim_k = 0, head_dim_v = 0;
  int64_t n_conv = 0, n_recurrence = 0;
  bool is_shared = false;  // later layers read it, too
  // A recurrent layer of another stage (model/stage.h): no memory here, but sequences count its states.
  bool has_states_elsewhere = false;
  int64_t window = 0;      // positions that attention sees; 0: all
  int64_t n_key_sets = 1;  // times that each key is cached, each with another rotation (graph/self_extend.h)

  bool has_rows() const { return head_dim_k > 0; }
  // Rows of keys and of values; those of latent attention are neither.
  bool has_heads() const { return head_dim_k > 0 && head_dim_v > 0; }
  bool is_recurrent() const { return n_conv > 0 || n_recurrence > 0; }
};

// The names of kCacheDTypes and kGroupedDTypes: {"f32", "f16", ...}
std::vector<std::string> cache_dtype_names();
// Finds one of them by its name in any case.
std::optional<DType> find_cache_dtype(std::string_view name);

// How a layer's rows are stored.
struct KvFormat {
  DType k = DType::F16, v = DType::F16;  // of kCacheDTypes or kGroupedDTypes
  KvRotation rotation;
  bool indexed = false;  // for sparse reads, where it is in host memory (device/kv_index.h)

  bool is_grouped() const { return is_kivi(k) || is_kivi(v); }
  bool operator==(const KvFormat&) const = default;
};
// The type of rows of a cache outside of it (kv/rows.h): those of grouped dtypes are F16.
constexpr DType kv_row_dtype(DType dtype) {
  return is_kivi(dtype) ? DType::F16 : dtype;
}

struct KvConfig {
  std::vector<KvShape> layers;
  DType k_dtype = DType::F16, v_dtype = DType::F16;  // of layers that have no format of their own
  int64_t n_ctx = 0;                                 // tokens of all sequences; rounded up to whole blocks
  int64_t block_size = 32;                           // tokens in a block
  int64_t n_state_slots = 0;                         // of each recurrent layer
  std::vector<KvFormat> formats = {};                // of each layer; empty: k_dtype and v_dtype, not rotated
  int64_t n_open_blocks = 0;                         // of each layer with a grouped dtype; at most all blocks
  // Of layers that spill, so many blocks are in memory and the others on disk (kv/spill.h); 0: nothing is on disk.
  int64_t n_memory_blocks = 0;

  bool is_recurrent() const;  // any layer
  // Any layer's format, also where the layer itself is elsewhere: all stages of a model cut texts back alike.
  bool is_grouped() const;
  // Those with heads; not those that later layers read too, which would be read from disk again for each of them.
  bool spills(size_t layer) const {
    return n_memory_blocks > 0 && layers[layer].has_heads() && !layers[layer].is_shared;
  }
  // Whether no GPU can have or read the cache.
  bool stays_on_host() const { return n_memory_blocks > 0; }
  KvFormat format(size_t layer) const {
    return formats.empty() ? KvFormat{k_dtype, v_dtype, {}} : formats[layer];
  }
};
// "F16", or of layers that differ "Q8_0+Q4_0".
std::string kv_dtype_text(const KvConfig& config, DType KvFormat::*which);
// Returns the state slots for n_sequences, each with its current state and one more that a step writes, and for
// n_checkpoints of all of them together.
int64_t state_slot_count(int64_t n_sequences, int64_t n_checkpoints);

// Throws Error(usage) for a dtype that cannot be cached, or not by layers of this kind, or whose quantization block does
// not divide the head dimension of a layer.
void check_kv_config(const KvConfig& config);
// Returns a layer of the cache as devices see it, without memory. A recurrent layer has F32 "keys" [n_conv] and
// "values" [n_recurrence], one row in each block of one token, and a block is a state slot.
KvLayer kv_layer_shape(const KvConfig& config, size_t layer);
// The same with another number of blocks, for its hot cache.
KvLayer kv_layer_shape(const KvConfig& config, size_t layer, int64_t n_blocks);
// The same on the device that holds it: on the host with an index, if the layer's format has one.
KvLayer kv_layer_shape(const KvConfig& config, size_t layer, DeviceId holder);
// Returns the bytes of a layer's pools, without those of an index.
size_t kv_layer_bytes(const KvConfig& config, size_t layer);
// Returns them with those of an index on the device that holds it.
size_t kv_layer_bytes(const KvConfig& config, size_t layer, DeviceId holder);
// Returns the bytes of a layer's pools and index, from its shape.
size_t kv_layer_bytes(const KvLayer& layer);
// Returns the bytes that a device that is not the host needs once for these layers: its table of open blocks.
size_t open_table_bytes(std::span<const KvLayer> layers);

// The GPUs that hold the hot caches.
struct HotPools {
  std::vector<std::optional<GpuId>> gpu_of_layer;  // none: the layer's cache is not split. Empty: no cache is
  int64_t n_blocks = 0;                            // in each hot cache

  std::optional<GpuId> gpu(size_t layer) const {
    return gpu_of_layer.empty() ? std::nullopt : gpu_of_layer[layer];
  }
};

// A layer's cache on several devices: each has some of the key-value heads, in order, or a copy of all of them; or, of a
// recurrent layer, some of the floats of every state slot.
struct HeadPools {
  struct Pool {
    DeviceId device;
    int64_t n_head_kv = 0;
    ColumnRuns conv = {}, recurrence = {};  // of the n_conv and n_recurrence floats of KvShape
  };
  std::vector<Pool> pools;
  bool are_copies = false;
};
// Returns a layer's shape as the pool has it.
KvLayer pool_shape(KvLayer whole, const HeadPools::Pool& pool);

class KvSpill;
using OpenDisk = std::function<std::unique_ptr<DiskReader>(std::vector<DiskFile>)>;

class KvCache {
 public:
  // heads[layer], if not empty: the layer's pools are there, and not in device_of_layer. Throws Error(out_of_memory).
  KvCache(const KvConfig& config, std::span<Device* const> devices, std::span<const DeviceId> device_of_layer,
          HotPools hot = {}, std::vector<HeadPools> heads = {});
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvConfig& config() const { return config_; }
  BlockPool& pool() { return pool_; }
  BlockPool& state_slots() { return state_slots_; }
  // Of a grouped cache; null for others.
  OpenGroups* open_groups() const { return open_groups_.get(); }
  // Makes the file of a cache that spills, which all its use needs. Throws Error(io).
  void spill_to(const std::string& folder, const OpenDisk& open);
  KvSpill* spill() const { return spill_.get(); }  // null for others
  // Tells the devices which blocks are open. Before a step that reads them; throws what their copies throw.
  void publish_open_blocks();
  // Of a grouped cache that is split: which blocks the hot one has, and where. All open blocks are among them, but while texts
  // are saved and loaded. HotCache says it.
  void set_hot_blocks(std::span<const int32_t> blocks, std::span<const int32_t> hot_blocks);
  Device& device(DeviceId id) const { return *devices_[id.index()]; }
  const HotPools& hot() const { return hot_; }
  // The devices that have a layer's rows or states; one, unless they are divided.
  const HeadPools& pools(size_t layer) const { return heads_[layer]; }
  // [device][layer], as the executor takes it. The host's part of a split cache has room for all positions.
  const std::vector<std::vector<KvLayer>>& layers() const { return layers_; }
  size_t n_bytes() const { return n_bytes_; }

  // Moves layers with their contents to the devices in device_of_layer. Throws Error(out_of_memory) if a
  // layer does not fit; it and the layers after it stay where they were. Layers that are divided stay too.
  void relocate(std::span<const DeviceId> device_of_layer);
  // Frees the hot caches. Their positions must be on the host already.
  void drop_hot();

 private:
  KvLayer allocate(KvLayer shape, DeviceId on);
  void free_layer(Device& device, KvLayer& layer);
  void free_all();
  DevicePtr open_table(DeviceId on, int64_t n_blocks);
  void free_open_table(size_t device);
  void free_unused_tables();
  void close_groups(std::span<const int32_t> blocks);

  KvConfig config_;
  std::span<Device* const> devices_;
  HotPools hot_;
  std::vector<HeadPools> heads_;  // [layer]
  BlockPool pool_, state_slots_;
  std::unique_ptr<OpenGroups> open_groups_;
  struct OpenTable {
    DevicePtr address = nullptr;
    size_t n_bytes = 0;
  };
  std::vector<OpenTable> open_tables_;  // [device]
  std::optional<uint64_t> published_;   // the version of the open groups that these have
  std::vector<int32_t> hot_block_of_,
      hot_places_;  // of a split cache: [n_blocks], -1: not hot; [hot.n_blocks] as places()
  std::vector<std::vector<KvLayer>> layers_;
  std::unique_ptr<KvSpill> spill_;
  size_t n_bytes_ = 0;
};

}  // namespace tandem
