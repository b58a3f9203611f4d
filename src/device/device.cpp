#include "device/device.h"

#include <vector>

#include "gguf/kivi.h"
#include "gguf/quants.h"

namespace tandem {
namespace {

static_assert(sizeof(DevicePtr) == 8, "device addresses are 64 bits wide");

// One half of a layer's cache, of a grouped dtype. A block has the rows of each head one after the other, in both pools.
struct GroupedPool {
  bool are_keys;
  DType dtype;
  DevicePtr pool, open;
  int64_t head_dim, n_head;

  size_t block_bytes(DType t) const {
    return row_bytes(t, head_dim) * static_cast<size_t>(kKiviGroup * n_head);
  }

  void close(Device& device, OpenBlock at) const {
    std::vector<std::byte> rows(block_bytes(DType::F16)), groups(block_bytes(dtype));
    std::vector<float> floats(static_cast<size_t>(kKiviGroup * head_dim));
    device.copy_out(rows.data(), open + static_cast<size_t>(at.place) * rows.size(), rows.size());
    device.wait(device.record());
    for (int64_t head = 0; head < n_head; ++head) {
      const int64_t n = kKiviGroup * head_dim;
      std::byte* to = groups.data() + static_cast<size_t>(head) * row_bytes(dtype, n);
      dequantize_row(DType::F16, rows.data() + static_cast<size_t>(head) * row_bytes(DType::F16, n),
                     floats.data(), n);
      if (are_keys) {
        quantize_key_group(dtype, floats.data(), to, head_dim);
      } else {
        quantize_row(dtype, floats.data(), to, n);
      }
    }
    device.copy_in(pool + static_cast<size_t>(at.block) * groups.size(), groups.data(), groups.size());
    device.wait(device.record());
  }
};

}  // namespace

void Device::close_groups(const KvLayer& l, std::span<const OpenBlock> blocks) {
  for (const GroupedPool& half : {GroupedPool{true, l.k_dtype, l.k, l.k_open, l.head_dim_k, l.n_head_k()},
                                  GroupedPool{false, l.v_dtype, l.v, l.v_open, l.head_dim_v, l.n_head_kv}}) {
    for (const OpenBlock& at : blocks) {
      if (half.open) half.close(*this, at);
    }
  }
}

}  // namespace tandem
