#include "exec/homes.h"

#include "base/error.h"
#include "base/overloaded.h"

namespace tandem {
namespace {

// Returns the GPU in a MemoryUse or DiskUse; none if the host computes.
struct GpuOf {
  std::optional<GpuId> operator()(const HostComputes&) const { return std::nullopt; }
  std::optional<GpuId> operator()(const ChosenExperts&) const { return std::nullopt; }
  std::optional<GpuId> operator()(const Streamed& use) const { return use.to; }
  std::optional<GpuId> operator()(const RowsShared& use) const { return use.with; }
  std::optional<GpuId> operator()(const CachedExperts&) const { return std::nullopt; }
};

template <class Divided>
DeviceId first_of(const Divided& kv) {
  for (size_t i = 0; i < kv.devices.size(); ++i) {
    if (kv.n(i) > 0) return kv.devices[i];
  }
  TANDEM_CHECK(false);
  return DeviceId::host();
}

template <class Held>  // InMemory or OnDisk
const auto& use_of(const Held& home, StepKind kind) {
  return kind == StepKind::prefill ? home.prefill : home.decode;
}

}  // namespace

StepKind step_kind(const ShapeClass& shape) {
  return shape.max_tokens > shape.max_sequences + shape.n_draft ? StepKind::prefill : StepKind::decode;
}

MemoryUse use_on(GpuId gpu, double share) {
  if (share < 1) return RowsShared{gpu, share};
  return Streamed{gpu};
}

DeviceId holder(const WeightHome& home) {
  const auto* resident = std::get_if<Resident>(&home);
  return resident ? DeviceId(resident->gpu) : DeviceId::host();
}

std::optional<GpuId> streamed_to(const WeightHome& home, StepKind kind) {
  return std::visit(Overloaded{[](const Resident&) -> std::optional<GpuId> { return std::nullopt; },
                               [&](const auto& held) { return std::visit(GpuOf{}, use_of(held, kind)); }},
                    home);
}

DeviceId computes_on(const WeightHome& home, StepKind kind) {
  if (const std::optional<GpuId> gpu = streamed_to(home, kind)) return *gpu;
  return holder(home);
}

double row_share(const WeightHome& home, StepKind kind) {
  const auto* held = std::get_if<InMemory>(&home);
  const auto* divided = held ? std::get_if<RowsShared>(&use_of(*held, kind)) : nullptr;
  return divided ? divided->share : 1;
}

bool uses_gpu(const WeightHome& home) {
  return !holder(home).is_host() || streamed_to(home, StepKind::prefill) ||
         streamed_to(home, StepKind::decode) || cached_experts(home, StepKind::decode);
}

const CachedExperts* cached_experts(const ExpertHome& home, StepKind kind) {
  return std::visit(
      Overloaded{[](const Resident&) -> const CachedExperts* { return nullptr; },
                 [&](const auto& held) { return std::get_if<CachedExperts>(&use_of(held, kind)); }},
      home);
}

bool reads_chosen(const ExpertHome& home, StepKind kind) {
  const auto* on_disk = std::get_if<OnDisk>(&home);
  if (!on_disk) return false;
  const DiskUse& use = use_of(*on_disk, kind);
  return std::holds_alternative<ChosenExperts>(use) || std::holds_alternative<CachedExperts>(use);
}

OnDisk moved_to_disk(const InMemory& home) {
  const auto whole = [](const MemoryUse& use) -> DiskUse {
    const std::optional<GpuId> gpu = std::visit(GpuOf{}, use);
    return gpu ? DiskUse(Streamed{*gpu}) : HostComputes{};
  };
  return {whole(home.prefill), whole(home.decode)};
}

OnDisk chosen_from_disk(const InMemory& home) {
  OnDisk moved = moved_to_disk(home);
  for (DiskUse* use : {&moved.prefill, &moved.decode}) {
    if (std::holds_alternative<HostComputes>(*use)) *use = ChosenExperts{};
  }
  return moved;
}

bool can_be_cached(const ExpertHome& home) {
  return std::visit(Overloaded{[](const Resident&) { return false; },
                               [](const InMemory& held) {
                                 return std::holds_alternative<HostComputes>(held.decode) ||
                                        std::holds_alternative<CachedExperts>(held.decode);
                               },
                               [&](const OnDisk&) { return reads_chosen(home, StepKind::decode); }},
                    home);
}

ExpertHome with_cached_experts(ExpertHome home, const CachedExperts& cached) {
  TANDEM_CHECK(can_be_cached(home));
  std::visit(Overloaded{[](Resident&) {}, [&](auto& held) { held.decode = cached; }}, home);
  return home;
}

ExpertHome without_cached_experts(ExpertHome home) {
  if (!cached_experts(home, StepKind::decode)) return home;
  std::visit(Overloaded{[](Resident&) {}, [](InMemory& held) { held.decode = HostComputes{}; },
                        [](OnDisk& held) { held.decode = ChosenExperts{}; }},
             home);
  return home;
}

DeviceId holder(const KvHome& home) {
  if (const auto* divided = std::get_if<DividedKv>(&home)) return first_of(*divided);
  if (const auto* divided = std::get_if<DividedState>(&home)) return first_of(*divided);
  const auto* resident = std::get_if<ResidentKv>(&home);
  return resident ? resident->device : DeviceId::host();
}

DeviceId attends_on(const KvHome& home, StepKind kind) {
  return std::visit(Overloaded{[](const ResidentKv& kv) { return kv.device; },
                               [=](const PrefetchedKv& kv) {
                                 const bool is_left = kv.for_prefill_alone && kind != StepKind::prefill;
                                 return is_left ? DeviceId::host() : DeviceId(kv.to);
                               },
                               [](const SplitKv& kv) { return DeviceId(kv.hot); },
                               [](const SpilledKv&) { return DeviceId::host(); },
                               [](const DividedKv& kv) { return first_of(kv); },
                               [](const DividedState& state) { return first_of(state); }},
                    home);
}

bool uses_gpu(const KvHome& home) {
  if (std::holds_alternative<DividedKv>(home) || std::holds_alternative<DividedState>(home)) return true;
  return !attends_on(home, StepKind::prefill).is_host();
}

}  // namespace tandem
