#include "kv/cache.h"

#include <string>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {
namespace {

int64_t block_count(const KvConfig& config) { return ceil_div(config.n_ctx, config.block_size); }

size_t pool_bytes(const KvConfig& config, const KvShape& shape, DType dtype, int64_t head_dim) {
  return row_bytes(dtype, head_dim) *
         static_cast<size_t>(block_count(config) * config.block_size * shape.n_head_kv);
}

void check_dtype(DType dtype, int64_t head_dim, const char* which) {
  const DTypeInfo& info = dtype_info(dtype);
  switch (dtype) {
    case DType::F32: case DType::F16: case DType::BF16: case DType::Q8_0: case DType::Q4_0: break;
    default:
      throw_error(ErrorCode::usage, "the %s cache cannot be %s: it can be f32, f16, bf16, q8_0 or q4_0", which,
                  std::string(info.name).c_str());
  }
  if (head_dim % info.block_elements != 0) {
    throw_error(ErrorCode::usage,
                "the %s cache cannot be %s: its blocks of %u elements do not divide this model's head size of %lld; "
                "use f16",
                which, std::string(info.name).c_str(), info.block_elements, static_cast<long long>(head_dim));
  }
}

}  // namespace

void check_kv_config(const KvConfig& config) {
  for (const KvShape& shape : config.layers) {
    check_dtype(config.k_dtype, shape.head_dim_k, "K");
    check_dtype(config.v_dtype, shape.head_dim_v, "V");
  }
}

KvLayer kv_layer_shape(const KvConfig& config, size_t layer) {
  const KvShape& shape = config.layers[layer];
  return {nullptr,          nullptr,          config.k_dtype,    config.v_dtype,     shape.n_head_kv,
          shape.head_dim_k, shape.head_dim_v, config.block_size, block_count(config)};
}

size_t kv_layer_bytes(const KvConfig& config, size_t layer) {
  const KvShape& shape = config.layers[layer];
  return pool_bytes(config, shape, config.k_dtype, shape.head_dim_k) +
         pool_bytes(config, shape, config.v_dtype, shape.head_dim_v);
}

KvCache::KvCache(const KvConfig& config, std::span<Device* const> devices, std::span<const int> device_of_layer)
    : config_(config),
      devices_(devices),
      pool_(block_count(config)),
      layers_(devices.size(), std::vector<KvLayer>(config.layers.size())) {
  check_kv_config(config);
  try {
    for (size_t i = 0; i < config.layers.size(); ++i) {
      const auto d = static_cast<size_t>(device_of_layer[i]);
      layers_[d][i] = allocate(i, *devices_[d]);
      n_bytes_ += kv_layer_bytes(config, i);
    }
  } catch (const Error& e) {
    free_all();
    if (e.code() != ErrorCode::out_of_memory) throw;
    throw_error(e.code(), "%s, for the KV cache of %lld tokens (a smaller -c or -ctk q8_0 -ctv q8_0 needs less)", e.what(),
                static_cast<long long>(config.n_ctx));
  } catch (...) {
    free_all();
    throw;
  }
}

KvLayer KvCache::allocate(size_t i, Device& device) const {
  KvLayer layer = kv_layer_shape(config_, i);
  layer.k = device.alloc(pool_bytes(config_, config_.layers[i], config_.k_dtype, layer.head_dim_k));
  try {
    layer.v = device.alloc(pool_bytes(config_, config_.layers[i], config_.v_dtype, layer.head_dim_v));
  } catch (...) {
    device.free(layer.k);
    throw;
  }
  return layer;
}

void KvCache::relocate(std::span<const int> device_of_layer) {
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    const auto to = static_cast<size_t>(device_of_layer[i]);
    for (size_t from = 0; from < layers_.size(); ++from) {
      if (from == to || layers_[from][i].k == nullptr) continue;
      const KvLayer layer = allocate(i, *devices_[to]);
      KvLayer& old = layers_[from][i];
      const auto move = [&](DevicePtr target, DevicePtr source, DType dtype, int64_t head_dim) {
        std::vector<std::byte> bytes(pool_bytes(config_, config_.layers[i], dtype, head_dim));
        devices_[from]->copy_out(bytes.data(), source, bytes.size());
        devices_[from]->wait(devices_[from]->record());
        devices_[to]->copy_in(target, bytes.data(), bytes.size());
        devices_[to]->wait(devices_[to]->record());
      };
      try {
        move(layer.k, old.k, layer.k_dtype, layer.head_dim_k);
        move(layer.v, old.v, layer.v_dtype, layer.head_dim_v);
      } catch (...) {
        devices_[to]->free(layer.k);
        devices_[to]->free(layer.v);
        throw;
      }
      devices_[from]->free(old.k);
      devices_[from]->free(old.v);
      old = KvLayer{};
      layers_[to][i] = layer;
    }
  }
}

KvCache::~KvCache() { free_all(); }

void KvCache::free_all() {
  for (size_t d = 0; d < layers_.size(); ++d) {
    for (KvLayer& layer : layers_[d]) {
      if (layer.k) devices_[d]->free(layer.k);
      if (layer.v) devices_[d]->free(layer.v);
      layer = KvLayer{};
    }
  }
}

}  // namespace tandem
