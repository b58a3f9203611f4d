#include "kv/cache.h"

#include <algorithm>
#include <string>

#include "base/checked.h"
#include "base/error.h"
#include "base/setting.h"
#include "base/text.h"
#include "device/kv_index.h"
#include "gguf/quants.h"
#include "kv/spill.h"

namespace tandem {
namespace {

int64_t block_count(const KvConfig& config) {
  return ceil_div(config.n_ctx, config.block_size);
}

size_t pool_bytes(const KvLayer& layer, DType dtype, int64_t head_dim) {
  return row_bytes(dtype, head_dim) *
         static_cast<size_t>(layer.n_blocks * layer.block_size * layer.n_head_kv);
}
size_t k_bytes(const KvLayer& layer) {
  return pool_bytes(layer, layer.k_dtype, layer.head_dim_k);
}
size_t v_bytes(const KvLayer& layer) {
  return pool_bytes(layer, layer.v_dtype, layer.head_dim_v);
}

// Of the F16 rows of open blocks.
size_t open_bytes(const KvLayer& layer, DType dtype, int64_t head_dim) {
  if (!is_kivi(dtype)) return 0;
  return row_bytes(DType::F16, head_dim) *
         static_cast<size_t>(layer.n_open * layer.block_size * layer.n_head_kv);
}
size_t k_open_bytes(const KvLayer& layer) {
  return open_bytes(layer, layer.k_dtype, layer.head_dim_k);
}
size_t v_open_bytes(const KvLayer& layer) {
  return open_bytes(layer, layer.v_dtype, layer.head_dim_v);
}

size_t all_bytes(const KvLayer& layer) {
  return k_bytes(layer) + v_bytes(layer) + kv_index_bytes(layer) + k_open_bytes(layer) + v_open_bytes(layer);
}

// Quantizes the F16 rows of an open block of one head: [block_size, head_dim].
void close_rows(DType dtype, bool are_keys, const fp16_t* open, std::byte* to, int64_t head_dim,
                std::vector<float>& rows) {
  rows.resize(static_cast<size_t>(kKiviGroup * head_dim));
  dequantize_row(DType::F16, open, rows.data(), kKiviGroup * head_dim);
  if (are_keys) return quantize_key_group(dtype, rows.data(), to, head_dim);
  quantize_row(dtype, rows.data(), to, kKiviGroup * head_dim);
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
  if (format.is_grouped()) made.n_open = std::min(config.n_open_blocks, n_blocks);
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
  return all_bytes(kv_layer_shape(config, layer));
}
size_t kv_layer_bytes(const KvConfig& config, size_t layer, DeviceId holder) {
  return all_bytes(kv_layer_shape(config, layer, holder));
}

KvCache::KvCache(const KvConfig& config, std::span<Device* const> devices,
                 std::span<const DeviceId> device_of_layer, HotPools hot, std::vector<HeadPools> heads)
    : config_(config),
      devices_(devices),
      hot_(std::move(hot)),
      heads_(std::move(heads)),
      pool_(block_count(config)),
      state_slots_(config.is_recurrent() ? config.n_state_slots : 0),
      layers_(devices.size(), std::vector<KvLayer>(config.layers.size())) {
  check_kv_config(config);
  heads_.resize(config.layers.size());
  if (config.is_grouped()) {
    TANDEM_CHECK(config.block_size == kKiviGroup && hot_.n_blocks == 0);
    open_groups_ =
        std::make_unique<OpenGroups>(pool_, std::min(config.n_open_blocks, block_count(config)),
                                     config.block_size, [this](int32_t block) { close_group(block); });
  }
  try {
    for (size_t i = 0; i < config.layers.size(); ++i) {
      for (const HeadPools::Pool& pool : heads_[i].pools) {
        layers_[pool.device.index()][i] =
            allocate(pool_shape(kv_layer_shape(config, i), pool), device(pool.device));
      }
      if (!heads_[i].pools.empty()) continue;
      const DeviceId whole = device_of_layer[i];
      layers_[whole.index()][i] = allocate(kv_layer_shape(config, i, whole), device(whole));
      heads_[i].pools.push_back({whole, config.layers[i].n_head_kv, {}, {}});
      const std::optional<GpuId> gpu = hot_.gpu(i);
      if (!gpu) continue;
      TANDEM_CHECK(whole.is_host());
      layers_[gpu->index()][i] = allocate(kv_layer_shape(config, i, hot_.n_blocks), device(*gpu));
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

KvLayer KvCache::allocate(KvLayer layer, Device& device) {
  const auto free_pools = [&] {
    for (const DevicePtr pool : {layer.k, layer.v, layer.index, layer.k_open, layer.v_open}) {
      if (pool) device.free(pool);
    }
  };
  TANDEM_CHECK(layer.n_open == 0 || device.info().host_memory);
  try {
    if (layer.head_dim_k > 0) layer.k = device.alloc(k_bytes(layer));
    if (layer.head_dim_v > 0) layer.v = device.alloc(v_bytes(layer));
    if (layer.indexed) layer.index = device.alloc(kv_index_bytes(layer));
    if (k_open_bytes(layer) > 0) layer.k_open = device.alloc(k_open_bytes(layer));
    if (v_open_bytes(layer) > 0) layer.v_open = device.alloc(v_open_bytes(layer));
    if (layer.n_open > 0) layer.open_of = open_groups_->places();
  } catch (...) {
    free_pools();
    throw;
  }
  n_bytes_ += all_bytes(layer);
  return layer;
}

void KvCache::free_layer(Device& device, KvLayer& layer) {
  for (const DevicePtr pool : {layer.k, layer.v, layer.index, layer.k_open, layer.v_open}) {
    if (pool) device.free(pool);
  }
  n_bytes_ -= all_bytes(layer);
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
}

void KvCache::relocate(std::span<const DeviceId> device_of_layer) {
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    if (heads_[i].pools.size() > 1) continue;
    const size_t to = device_of_layer[i].index();
    for (size_t from = 0; from < layers_.size(); ++from) {
      const bool is_hot = hot_.gpu(i) == DeviceId::at(from);
      if (from == to || is_hot || layers_[from][i].k == nullptr) continue;
      KvLayer layer = allocate(kv_layer_shape(config_, i, device_of_layer[i]), *devices_[to]);
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
}

// In every layer.
void KvCache::close_group(int32_t block) {
  std::vector<float> rows;
  for (const KvLayer& layer : layers_.front()) {
    if (layer.n_open == 0) continue;
    for (const bool are_keys : {true, false}) {
      const DType dtype = are_keys ? layer.k_dtype : layer.v_dtype;
      const int64_t head_dim = are_keys ? layer.head_dim_k : layer.head_dim_v;
      const DevicePtr open = are_keys ? layer.k_open : layer.v_open, pool = are_keys ? layer.k : layer.v;
      if (!open) continue;
      const auto n_group = row_bytes(dtype, head_dim) * static_cast<size_t>(kKiviGroup);
      const auto n_open_group = row_bytes(DType::F16, head_dim) * static_cast<size_t>(kKiviGroup);
      for (int64_t head = 0; head < layer.n_head_kv; ++head) {
        const auto from = static_cast<size_t>(layer.open_of[block] * layer.n_head_kv + head);
        const auto to = static_cast<size_t>(block * layer.n_head_kv + head);
        close_rows(dtype, are_keys, reinterpret_cast<const fp16_t*>(open + from * n_open_group),
                   pool + to * n_group, head_dim, rows);
      }
    }
  }
}

KvCache::~KvCache() {
  free_all();
}

void KvCache::free_all() {
  for (size_t d = 0; d < layers_.size(); ++d) {
    for (KvLayer& layer : layers_[d]) {
      if (layer.k) free_layer(*devices_[d], layer);
    }
  }
}

}  // namespace tandem
