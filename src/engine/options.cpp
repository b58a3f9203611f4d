#include "engine/options.h"

#include "base/setting.h"
#include "plan/offload.h"

namespace tandem {

void check_self_extend(const SelfExtend& self_extend, const EngineOptions& o) {
  check_self_extend(self_extend);
  if (!self_extend.on()) return;
  const RopeOverrides& rope = o.model.rope;
  const SettingValue extend{Setting::self_extend, std::to_string(self_extend.factor)};
  const char* two_ways = "both extend the context, each in its own way";
  if (rope.scales()) throw_contradiction(extend, {Setting::rope}, two_ways);
  if (rope.sets_yarn()) throw_contradiction(extend, {Setting::yarn}, two_ways);
  if (o.context.sparse_kv.on()) {
    throw_contradiction(extend, {Setting::sparse_kv},
                        "one reads all of the cache in two parts, the other a part of it");
  }
  if (o.offload.kv_split) {
    throw_contradiction(extend, {Setting::kv_split}, "each divides the cache in its own way");
  }
  if (o.offload.split_mode == SplitMode::tensor) {
    throw_contradiction(extend, {Setting::split_mode, "tensor"},
                        "keys that are cached twice stay on one device");
  }
}

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
  check_self_extend(o.model.rope.self_extend, o);
  if (o.offload.disk != Toggle::on) return;
  const char* why = "one leaves weights on disk, the other loads them all";
  if (!o.model.open.mmap) throw_contradiction({Setting::disk}, {Setting::mmap, "off"}, why);
  if (o.model.open.mlock) throw_contradiction({Setting::disk}, {Setting::mlock}, why);
}

}  // namespace tandem
