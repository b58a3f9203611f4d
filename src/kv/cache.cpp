#include "kv/cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/setting.h"
#include "base/text.h"
#include "device/kv_index.h"
#include "kv/spill.h"

namespace tandem {
namespace {

int64_t block_count(const KvConfig& config) {
  return ceil_div(config.n_ctx, config.block_size);
}

size_t pool_bytes(const KvLayer& layer, DType dtype, int64_t n_head, int64_t head_dim) {
  return row_bytes(dtype, head_dim) * static_cast<size_t>(layer.n_blocks * layer.block_size * n_head);
}
size_t k_bytes(const KvLayer& layer) {
  return pool_bytes(layer, layer.k_dtype, layer.n_head_k(), layer.head_dim_k);
}
size_t v_bytes(const KvLayer& layer) {
  return pool_bytes(layer, layer.v_dtype, layer.n_head_kv, layer.head_dim_v);
}

// Of the F16 rows of open blocks.
size_t open_bytes(const KvLayer& layer, DType dtype, int64_t n_head, int64_t head_dim) {
  if (!is_kivi(dtype)) return 0;
  return row_bytes(DType::F16, head_dim) * static_cast<size_t>(layer.n_open * layer.block_size * n_head);
}
size_t k_open_bytes(const KvLayer& layer) {
  return open_bytes(layer, layer.k_dtype, layer.n_head_k(), layer.head_dim_k);
}
size_t v_open_bytes(const KvLayer& layer) {
  return open_bytes(layer, layer.v_dtype, layer.n_head_kv, layer.head_dim_v);
}

void check_dtype(DType dtype, int64_t head_dim, const char* which) {
  const DTypeInfo& info = dtype_info(dtype);
  if (std::ranges::find(kCacheDTypes, dtype) == std::end(kCacheDTypes) && !is_kivi(dtype)) {
    throw_error(ErrorCode::usage, "the {} cache cannot be {}: it can be one of {}", which, info.name,
                joined(cache_dtype_names(), ", "));
  }
  if (head_dim % info.block_elements != 0) {
    throw_error(
        ErrorCode::usage,
        "the {} cache cannot be {}: its blocks of {} elements do not divide this model's head size of {}; "
        "use f16",
        which, info.name, info.block_elements, head_dim);
  }
}

}  // namespace

std::vector<std::string> cache_dtype_names() {
  std::vector<std::string> names;
  for (const DType dtype : kCacheDTypes) names.push_back(lower_case(dtype_name(dtype)));
  for (const DType dtype : kGroupedDTypes) names.push_back(lower_case(dtype_name(dtype)));
  return names;
}

std::optional<DType> find_cache_dtype(std::string_view name) {
  const std::string wanted = lower_case(name);
  for (const DType dtype : kCacheDTypes) {
    if (lower_case(dtype_name(dtype)) == wanted) return dtype;
  }
  for (const DType dtype : kGroupedDTypes) {
    if (lower_case(dtype_name(dtype)) == wanted) return dtype;
  }
  return std::nullopt;
}

void check_kv_config(const KvConfig& config) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const KvShape& shape = config.layers[i];
    if (shape.is_recurrent()) continue;
    if (config.format(i).is_grouped() && shape.has_rows() && !shape.has_heads()) {
      throw_error(ErrorCode::usage,
                  "the cache cannot be KIVI4 or KIVI2: layer {} caches rows of latent attention, and these "
                  "types are for heads of keys and values; use q8_0",
                  i);
    }
    check_dtype(config.format(i).k, shape.head_dim_k, "K");
    check_dtype(config.format(i).v, shape.head_dim_v, "V");
  }
}

std::string kv_dtype_text(const KvConfig& config, DType KvFormat::*which) {
  std::vector<std::string> names;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (!config.layers[i].has_rows()) continue;
    const std::string name(dtype_name(config.format(i).*which));
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names.empty() ? std::string(dtype_name(config.format(0).*which)) : joined(names, "+");
}

bool KvConfig::is_recurrent() const {
  return std::ranges::any_of(
      layers, [](const KvShape& shape) { return shape.is_recurrent() || shape.has_states_elsewhere; });
}

bool KvConfig::is_grouped() const {
  if (formats.empty()) return is_kivi(k_dtype) || is_kivi(v_dtype);
  return std::ranges::any_of(formats, &KvFormat::is_grouped);
}

int64_t state_slot_count(int64_t n_sequences, int64_t n_checkpoints) {
  return 2 * n_sequences + n_checkpoints;
}

KvLayer kv_layer_shape(const KvConfig& config, size_t layer) {
  if (config.n_memory_blocks == 0) return kv_layer_shape(config, layer, block_count(config));
  const int64_t n_places = block_count(config) + 1;  // one is free where a block moves to
  if (!config.spills(layer)) return kv_layer_shape(config, layer, n_places);
  KvLayer made = kv_layer_shape(config, layer, config.n_memory_blocks);
  made.n_spilled = n_places - config.n_memory_blocks;
  made.window = config.layers[layer].window;
  return made;
}

KvLayer kv_layer_shape(const KvConfig& config, size_t layer, int64_t n_blocks) {
  const KvShape& shape = config.layers[layer];
  if (shape.is_recurrent()) {
    return {nullptr,
            nullptr,
            DType::F32,
            DType::F32,
            1,
            shape.n_conv,
            shape.n_recurrence,
            1,
            config.n_state_slots};
  }
  const KvFormat format = config.format(layer);
  KvLayer made{nullptr,          nullptr,          format.k,          format.v, shape.n_head_kv,
               shape.head_dim_k, shape.head_dim_v, config.block_size, n_blocks};
  made.n_key_sets = shape.n_key_sets;
  if (format.is_grouped())
    made.n_open = std::min(config.n_open_blocks, block_count(config));  // in a hot cache too
  return made;
}

KvLayer kv_layer_shape(const KvConfig& config, size_t layer, DeviceId holder) {
  KvLayer shape = kv_layer_shape(config, layer);
  shape.indexed = holder.is_host() && config.format(layer).indexed;
  return shape;
}

KvLayer pool_shape(KvLayer whole, const HeadPools::Pool& pool) {
  const bool is_recurrent = !pool.conv.empty() || !pool.recurrence.empty();
  if (is_recurrent) {
    whole.head_dim_k = n_columns(pool.conv);
    whole.head_dim_v = n_columns(pool.recurrence);
  } else {
    whole.n_head_kv = pool.n_head_kv;
  }
  return whole;
}

size_t kv_layer_bytes(const KvConfig& config, size_t layer) {
  return kv_layer_bytes(kv_layer_shape(config, layer));
}
size_t kv_layer_bytes(const KvConfig& config, size_t layer, DeviceId holder) {
  return kv_layer_bytes(kv_layer_shape(config, layer, holder));
}
size_t kv_layer_bytes(const KvLayer& layer) {
  return k_bytes(layer) + v_bytes(layer) + kv_index_bytes(layer) + k_open_bytes(layer) + v_open_bytes(layer);
}
size_t open_table_bytes(std::span<const KvLayer> layers) {
  const auto grouped = std::ranges::find_if(layers, [](const KvLayer& layer) { return layer.n_open > 0; });
  return grouped == layers.end() ? 0 : static_cast<size_t>(grouped->n_blocks) * sizeof(int32_t);
}

KvCache::KvCache(const KvConfig& config, std::span<Device* const> devices,
                 std::span<const DeviceId> device_of_layer, HotPools hot, std::vector<HeadPools> heads)
    : config_(config),
      devices_(devices),
      hot_(std::move(hot)),
      heads_(std::move(heads)),
      pool_(block_count(config)),
      state_slots_(config.is_recurrent() ? config.n_state_slots : 0),
      open_tables_(devices.size()),
      layers_(devices.size(), std::vector<KvLayer>(config.layers.size())) {
  check_kv_config(config);
  heads_.resize(config.layers.size());
  if (config.is_grouped()) {
    TANDEM_CHECK(config.block_size == kKiviGroup);
    hot_block_of_.assign(static_cast<size_t>(pool_.n_blocks()), -1);
    hot_places_.assign(static_cast<size_t>(hot_.n_blocks), -1);
    open_groups_ = std::make_unique<OpenGroups>(
        pool_, std::min(config.n_open_blocks, block_count(config)), config.block_size,
        [this](std::span<const int32_t> blocks) { close_groups(blocks); });
  }
  try {
    for (size_t i = 0; i < config.layers.size(); ++i) {
      for (const HeadPools::Pool& pool : heads_[i].pools) {
        layers_[pool.device.index()][i] = allocate(pool_shape(kv_layer_shape(config, i), pool), pool.device);
      }
      if (!heads_[i].pools.empty()) continue;
      const DeviceId whole = device_of_layer[i];
      layers_[whole.index()][i] = allocate(kv_layer_shape(config, i, whole), whole);
      heads_[i].pools.push_back({whole, config.layers[i].n_head_kv, {}, {}});
      const std::optional<GpuId> gpu = hot_.gpu(i);
      if (!gpu) continue;
      TANDEM_CHECK(whole.is_host());
      layers_[gpu->index()][i] = allocate(kv_layer_shape(config, i, hot_.n_blocks), *gpu);
    }
  } catch (const Error& e) {
    free_all();
    if (e.code() != ErrorCode::out_of_memory) throw;
    throw_error(e.code(), "{}, for the KV cache of {} tokens (a smaller {} or {} {} needs less)", e.message(),
                config.n_ctx, setting_text(Setting::n_ctx), setting_text(Setting::k_dtype, "q8_0"),
                setting_text(Setting::v_dtype, "q8_0"));
  } catch (...) {
    free_all();
    throw;
  }
}

// The first layer that needs the table brings it; it stays until the cache ends.
DevicePtr KvCache::open_table(DeviceId on, int64_t n_blocks) {
  OpenTable& table = open_tables_[on.index()];
  if (on.is_host() || table.address) return table.address;
  table.n_bytes = static_cast<size_t>(n_blocks) * sizeof(int32_t);
  table.address = device(on).alloc(table.n_bytes);
  n_bytes_ += table.n_bytes;
  published_.reset();
  return table.address;
}

void KvCache::free_open_table(size_t device) {
  const OpenTable table = std::exchange(open_tables_[device], {});
  if (!table.address) return;
  devices_[device]->free(table.address);
  n_bytes_ -= table.n_bytes;
}

void KvCache::free_unused_tables() {
  for (size_t d = 0; d < layers_.size(); ++d) {
    if (open_table_bytes(layers_[d]) == 0) free_open_table(d);
  }
}

KvLayer KvCache::allocate(KvLayer layer, DeviceId on) {
  Device& device = *devices_[on.index()];
  const auto free_pools = [&] {
    for (const DevicePtr pool : {layer.k, layer.v, layer.index, layer.k_open, layer.v_open}) {
      if (pool) device.free(pool);
    }
  };
  try {
    if (layer.head_dim_k > 0) layer.k = device.alloc(k_bytes(layer));
    if (layer.head_dim_v > 0) layer.v = device.alloc(v_bytes(layer));
    if (layer.indexed) layer.index = device.alloc(kv_index_bytes(layer));
    if (k_open_bytes(layer) > 0) layer.k_open = device.alloc(k_open_bytes(layer));
    if (v_open_bytes(layer) > 0) layer.v_open = device.alloc(v_open_bytes(layer));
    if (layer.n_open > 0) {
      const bool is_hot = layer.n_blocks != pool_.n_blocks();
      layer.open_of = is_hot ? hot_places_.data() : open_groups_->places();
      layer.open_table = open_table(on, layer.n_blocks);
    }
  } catch (...) {
    free_pools();
    throw;
  }
  n_bytes_ += kv_layer_bytes(layer);
  return layer;
}

void KvCache::free_layer(Device& device, KvLayer& layer) {
  for (const DevicePtr pool : {layer.k, layer.v, layer.index, layer.k_open, layer.v_open}) {
    if (pool) device.free(pool);
  }
  n_bytes_ -= kv_layer_bytes(layer);
  layer = KvLayer{};
}

void KvCache::spill_to(const std::string& folder, const OpenDisk& open) {
  spill_ = std::make_unique<KvSpill>(config_, folder, layers_.front(), pool_, open);
}

void KvCache::drop_hot() {
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    const std::optional<GpuId> gpu = hot_.gpu(i);
    if (gpu) free_layer(device(*gpu), layers_[gpu->index()][i]);
  }
  hot_ = HotPools{};
  free_unused_tables();
}

void KvCache::relocate(std::span<const DeviceId> device_of_layer) {
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    if (heads_[i].pools.size() > 1) continue;
    const size_t to = device_of_layer[i].index();
    for (size_t from = 0; from < layers_.size(); ++from) {
      const bool is_hot = hot_.gpu(i) == DeviceId::at(from);
      if (from == to || is_hot || layers_[from][i].k == nullptr) continue;
      KvLayer layer = allocate(kv_layer_shape(config_, i, device_of_layer[i]), device_of_layer[i]);
      KvLayer& old = layers_[from][i];
      const auto move = [&](DevicePtr target, DevicePtr source, size_t n_bytes) {
        std::vector<std::byte> bytes(n_bytes);
        devices_[from]->copy_out(bytes.data(), source, bytes.size());
        devices_[from]->wait(devices_[from]->record());
        devices_[to]->copy_in(target, bytes.data(), bytes.size());
        devices_[to]->wait(devices_[to]->record());
      };
      try {
        move(layer.k, old.k, k_bytes(layer));
        if (layer.v) move(layer.v, old.v, v_bytes(layer));
        if (layer.k_open) move(layer.k_open, old.k_open, k_open_bytes(layer));
        if (layer.v_open) move(layer.v_open, old.v_open, v_open_bytes(layer));
      } catch (...) {
        free_layer(*devices_[to], layer);
        throw;
      }
      free_layer(*devices_[from], old);
      layers_[to][i] = layer;
      heads_[i].pools.front().device = device_of_layer[i];
      for (int64_t b = 0; layer.indexed && b < layer.n_blocks; ++b) index_block(layer, b, layer.block_size);
    }
  }
  free_unused_tables();
}

// In every layer; where it is split, on the side that has the block.
void KvCache::close_groups(std::span<const int32_t> blocks) {
  std::vector<OpenBlock> all, hot, cold;
  for (const int32_t block : blocks) {
    const int32_t place = open_groups_->places()[block],
                  hot_block = hot_block_of_[static_cast<size_t>(block)];
    all.push_back({block, place});
    hot_block >= 0 ? hot.push_back({hot_block, place}) : cold.push_back({block, place});
  }
  for (size_t d = 0; d < layers_.size(); ++d) {
    for (size_t i = 0; i < layers_[d].size(); ++i) {
      const KvLayer& layer = layers_[d][i];
      if (layer.n_open == 0) continue;
      const std::vector<OpenBlock>& own = !hot_.gpu(i) ? all : d == 0 ? cold : hot;
      if (!own.empty()) devices_[d]->close_groups(layer, own);
    }
  }
}

void KvCache::set_hot_blocks(std::span<const int32_t> blocks, std::span<const int32_t> hot_blocks) {
  std::ranges::fill(hot_block_of_, -1);
  for (size_t i = 0; i < blocks.size(); ++i) hot_block_of_[static_cast<size_t>(blocks[i])] = hot_blocks[i];
  published_.reset();
}

// Waits, so that what is told is what is there, and an error comes from here.
void KvCache::publish_open_blocks() {
  if (!open_groups_ || published_ == open_groups_->version()) return;
  const int32_t* places = open_groups_->places();
  std::ranges::fill(hot_places_, -1);
  for (size_t b = 0; b < hot_block_of_.size(); ++b) {
    if (hot_block_of_[b] >= 0) hot_places_[static_cast<size_t>(hot_block_of_[b])] = places[b];
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    const OpenTable& table = open_tables_[d];
    if (!table.address) continue;
    devices_[d]->copy_in(table.address, hot_.n_blocks > 0 ? hot_places_.data() : places, table.n_bytes);
    devices_[d]->wait(devices_[d]->record());
  }
  published_ = open_groups_->version();
}

KvCache::~KvCache() {
  free_all();
}

void KvCache::free_all() {
  for (size_t d = 0; d < layers_.size(); ++d) {
    for (KvLayer& layer : layers_[d]) {
      if (layer.k) free_layer(*devices_[d], layer);
    }
    free_open_table(d);
  }
}

}  // namespace tandem
