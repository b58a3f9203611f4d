#include "engine/held_weights.h"

#include "base/numa.h"
#include "exec/huge_weights.h"

namespace tandem {

HoldBytes hold_while_free(const Model& model, const Device& host) {
  return [&model, &host](std::span<const std::byte> bytes) {
    const MemoryInfo memory = host.memory_info();
    const bool has_room = memory.free_bytes > bytes.size() + memory.total_bytes / 16;
    return (has_room || !model.file().is_mapped()) && model.file().hold(bytes);
  };
}

bool takes_huge_pages(Toggle wanted, const Model& model, const Footprint& bytes, const Device& host) {
  if (wanted == Toggle::off || !model.may_leave_on_disk() || !grants_huge_pages()) return false;
  if (wanted == Toggle::on) return true;
  const MemoryInfo memory = host.memory_info();
  return bytes.disk_weights == 0 && numa_nodes().size() <= 1 &&
         memory.free_bytes > bytes.mapped_weights + memory.total_bytes / 8;
}

}  // namespace tandem
