#include "engine/options.h"

#include "base/setting.h"
#include "plan/offload.h"

namespace tandem {

void check_options(const EngineOptions& o) {
  check_offload(o.offload);
  if (o.context.sparse_kv.on() && o.offload.kv_prefetched) {
    throw_contradiction({Setting::sparse_kv}, {Setting::kv_prefetched},
                        "one has the CPU read some of the cache, the other brings all of it to the GPU");
  }
  if (o.context.sparse_kv.on() && o.offload.split_mode == SplitMode::tensor) {
    throw_contradiction({Setting::sparse_kv}, {Setting::split_mode, "tensor"},
                        "sparse reads are for caches that one device has whole");
  }
  if (o.offload.disk != Toggle::on) return;
  const char* why = "one leaves weights on disk, the other loads them all";
  if (!o.model.open.mmap) throw_contradiction({Setting::disk}, {Setting::mmap, "off"}, why);
  if (o.model.open.mlock) throw_contradiction({Setting::disk}, {Setting::mlock}, why);
}

}  // namespace tandem
