// The KV cache: for every layer two pools of blocks, on the device that the placement names, and for layers
// whose cache is split two more for the hot one. Owns that memory.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "kv/block_pool.h"

namespace tandem {

// What a layer caches for a token: n_head_kv rows of head_dim_k and of head_dim_v elements.
struct KvShape {
  int64_t n_head_kv = 0, head_dim_k = 0, head_dim_v = 0;
};

struct KvConfig {
  std::vector<KvShape> layers;
  DType k_dtype = DType::F16, v_dtype = DType::F16;  // F32 F16 BF16 Q8_0 Q4_0
  int64_t n_ctx = 0;                                 // tokens over all sequences; rounded up to whole blocks
  int64_t block_size = 32;                           // tokens in a block
};

// Throws Error(usage) for a dtype that cannot be cached, or whose block does not divide the head dimension.
void check_kv_config(const KvConfig& config);
// A layer of the cache as devices see it, without memory.
KvLayer kv_layer_shape(const KvConfig& config, size_t layer);
// Its hot cache.
KvLayer kv_layer_shape(const KvConfig& config, size_t layer, int64_t n_blocks);
// Bytes of both pools of a layer.
size_t kv_layer_bytes(const KvConfig& config, size_t layer);

// Where hot caches lie.
struct HotPools {
  std::vector<std::optional<GpuId>> gpu_of_layer;  // none: the layer's cache is in one piece. Empty: all are
  int64_t n_blocks = 0;                            // in each

  std::optional<GpuId> gpu(size_t layer) const {
    return gpu_of_layer.empty() ? std::nullopt : gpu_of_layer[layer];
  }
};

class KvCache {
 public:
  // Throws Error(out_of_memory).
  KvCache(const KvConfig& config, std::span<Device* const> devices, std::span<const DeviceId> device_of_layer,
          HotPools hot = {});
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvConfig& config() const { return config_; }
  BlockPool& pool() { return pool_; }
  Device& device(DeviceId id) const { return *devices_[id.index()]; }
  const HotPools& hot() const { return hot_; }
  // [device][layer], as the executor takes it. Where a layer's cache is split, that on the host has
  // room for all positions.
  const std::vector<std::vector<KvLayer>>& layers() const { return layers_; }
  size_t n_bytes() const { return n_bytes_; }

  // Moves layers, with what they hold, to where device_of_layer says. A layer that finds no room stays where
  // it was, as do those after it: Error(out_of_memory).
  void relocate(std::span<const DeviceId> device_of_layer);
  // Frees the hot caches, whose positions are on the host by now.
  void drop_hot();

 private:
  KvLayer allocate(KvLayer shape, Device& device);
  void free_layer(Device& device, KvLayer& layer);
  void free_all();

  KvConfig config_;
  std::span<Device* const> devices_;
  HotPools hot_;
  BlockPool pool_;
  std::vector<std::vector<KvLayer>> layers_;
  size_t n_bytes_ = 0;
};

}  // namespace tandem
