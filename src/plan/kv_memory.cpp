#include "plan/kv_memory.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/setting.h"
#include "exec/kv_stream.h"
#include "plan/footprint.h"

namespace tandem {
namespace {

// With the slots of layers on disk.
size_t bytes_in_memory(KvConfig kv, int64_t n_memory_blocks) {
  kv.n_memory_blocks = n_memory_blocks;
  size_t n_bytes = 0, slot_bytes = 0, n_spilling = 0;
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    n_bytes += kv_layer_bytes(kv, i, DeviceId::host());
    if (!kv.spills(i)) continue;
    slot_bytes = std::max(slot_bytes, kv_spill_slot_bytes(kv_layer_shape(kv, i)));
    ++n_spilling;
  }
  return n_bytes + std::min(n_spilling, Placement().n_stream_slots) * slot_bytes;
}

std::string limit_text(const ContextOptions& shape) {
  return setting_text(Setting::kv_memory, size_text(*shape.kv_memory));
}

void check_can_spill(const KvConfig& kv, const ContextOptions& shape) {
  const auto refuse = [&](const std::string& why) {
    throw_error(ErrorCode::usage, "{}: {}", limit_text(shape), why);
  };
  if (shape.sparse_kv.on()) refuse("a cache that is read sparsely is not read from disk");
  if (kv.is_grouped())
    refuse("a KIVI4 or KIVI2 cache is not read from disk; use other types of keys and values");
  const auto is_latent = [](const KvShape& s) { return s.has_rows() && !s.has_heads(); };
  if (std::ranges::any_of(kv.layers, is_latent)) refuse("rows of latent attention are not read from disk");
}

}  // namespace

void set_kv_memory(KvConfig& kv, const ContextOptions& shape) {
  if (!shape.kv_memory || bytes_in_memory(kv, 0) <= *shape.kv_memory) return;
  check_can_spill(kv, shape);
  const int64_t n_blocks = ceil_div(kv.n_ctx, kv.block_size);
  // What a step writes: of each sequence, the first and the last block may be written in part.
  const int64_t least = ceil_div(shape.n_ubatch, kv.block_size) + 2 * shape.n_sequences;
  int64_t low = least, high = n_blocks;  // low is fine, high is not
  if (least >= n_blocks || bytes_in_memory(kv, least) > *shape.kv_memory) {
    throw_error(
        ErrorCode::out_of_memory,
        "{}: this context needs at least {}, for the tokens of a step and for what it reads of the rest",
        limit_text(shape),
        size_text(std::min(bytes_in_memory(kv, std::min(least, n_blocks)), bytes_in_memory(kv, 0))));
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (bytes_in_memory(kv, middle) <= *shape.kv_memory ? low : high) = middle;
  }
  kv.n_memory_blocks = low;
}

void spill_caches(Placement& placement, const KvConfig& kv) {
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    KvHome& home = placement.layers[i].kv;
    if (!kv.spills(i)) continue;
    if (home != KvHome(ResidentKv{}) && home != KvHome(SpilledKv{})) {
      throw_error(ErrorCode::usage, "{}: only a cache that the CPU reads can be on disk; add {}",
                  setting_text(Setting::kv_memory), setting_text(Setting::kv_on_host));
    }
    home = SpilledKv{};
  }
}

}  // namespace tandem
