#include "plan/choices.h"

#include <algorithm>
#include <iterator>

#include "exec/tensor_cuts.h"

namespace tandem {
namespace {

// The ways to divide the layers over GPUs that the options leave open.
std::vector<SplitMode> open_splits(const FitRequest& r) {
  const OffloadOptions& f = r.options;
  if (f.split_mode != SplitMode::automatic || r.devices.size() < 3) return {from_options(f, 0).split};
  std::vector<SplitMode> list{SplitMode::layer};
  if (f.tensor_split.empty()) list.push_back(SplitMode::none);
  if (may_divide_layers(r)) list.push_back(SplitMode::tensor);
  return list;
}

// Whether each device has some of the key-value heads of every layer, or where there is one of the query heads; and of the
// heads or channels of recurrent layers.
bool all_have_heads(const FitRequest& r, const Placement& placement) {
  const TensorParallel& parallel = *placement.parallel;
  for (size_t layer = 0; layer < placement.layers.size(); ++layer) {
    const auto* divided = std::get_if<DividedKv>(&placement.layers[layer].kv);
    const KvShape& shape = r.kv.layers[layer];
    if (const auto* state = std::get_if<DividedState>(&placement.layers[layer].kv)) {
      for (size_t i = 0; i < parallel.devices.size(); ++i) {
        if (state->n(i) == 0) return false;
      }
      continue;
    }
    if (!divided && (!shape.has_rows() || shape.n_head_kv < 2)) continue;
    const Cuts cuts =
        divided ? Cuts{divided->first.back(), divided->first} : cut_by_shares(parallel, shape.n_head_kv);
    for (size_t i = 0; i < parallel.devices.size(); ++i) {
      if (!cuts.has(i)) return false;
    }
  }
  return true;
}

std::vector<OffloadChoice> with_caches(const OffloadChoice& choice, const std::vector<CacheChoice>& caches) {
  std::vector<OffloadChoice> list(caches.size(), choice);
  for (size_t i = 0; i < caches.size(); ++i) list[i].cache = caches[i];
  return list;
}

std::vector<OffloadChoice> open_choices_of(const FitRequest& r, SplitMode split) {
  const OffloadOptions& f = r.options;
  OffloadChoice said = from_options(f, 0);
  said.split = split;
  if (r.devices.size() < 2) return {OffloadChoice{}};
  if (r.kv.stays_on_host()) said.cache = CacheOnHost{};
  const bool is_divided = split == SplitMode::tensor;
  const bool may_prefetch = !is_divided && !r.graphs.front()->shape.sparse.on() && !r.kv.stays_on_host();
  std::vector<CacheChoice> caches{said.cache};
  if (may_prefetch && said.cache == CacheChoice(CacheOnHost{})) caches = {CacheOnHost{true}, CacheOnHost{}};
  if (r.rates.empty()) return with_caches(said, caches);
  if (split == SplitMode::none && f.split_mode == SplitMode::automatic) return {said};
  if (f.kv_on_host == Toggle::automatic && !f.n_kv_layers_gpu && !f.kv_prefetched && !f.kv_split &&
      !r.kv.stays_on_host()) {
    caches = {CacheBesideLayers{}, CacheOnHost{}};
    if (may_prefetch) caches.insert(caches.end(), {PrefetchedCache{}, CacheOnHost{true}});
    for (int64_t parts : {2, 4, 8}) {
      const bool may_split = r.graphs.front()->shape.max_sequences == 1 && !is_divided &&
                             !r.architecture.hparams().self_extend.on();
      if (may_split) caches.push_back(SplitCache{std::max<int64_t>(1, r.kv.n_ctx / parts)});
    }
  }
  std::vector<int64_t> moe{said.n_cpu_moe};
  const int64_t n_layer = r.architecture.hparams().n_layer;
  if (!f.n_cpu_moe && r.architecture.hparams().n_expert > 0)
    moe = {0, n_layer / 4, n_layer / 2, n_layer * 3 / 4, n_layer};
  std::vector<Streaming> streaming{said.streaming};
  if (said.streaming == Streaming::none && f.stream == Toggle::automatic) {
    streaming = {Streaming::none, Streaming::prefill};
    // Steps that bring all experts have no use for some that stay.
    if (f.expert_cache.value_or(0) == 0) streaming.push_back(Streaming::always);
  }
  std::vector<OffloadChoice> list;
  for (const Streaming s : streaming) {
    for (const CacheChoice& cache : caches) {
      for (const int64_t n : moe) {
        OffloadChoice choice{0, cache, n, s};
        choice.split = split;
        choice.rows_prefill = said.rows_prefill;
        choice.rows_decode = said.rows_decode;
        list.push_back(choice);
        if (s != Streaming::prefill || !may_prefetch || cache != CacheChoice(CacheBesideLayers{})) continue;
        choice.cache = CacheBesideLayers{true};
        list.push_back(choice);
      }
    }
  }
  return list;
}

}  // namespace

bool may_divide_layers(const FitRequest& r) {
  const OffloadOptions& f = r.options;
  const bool contradicts = f.kv_split || f.kv_prefetched || f.gpu_rows.value_or(1) < 1 ||
                           f.expert_cache.value_or(0) > 0 || f.disk == Toggle::on ||
                           r.graphs.front()->shape.sparse.on() || r.kv.stays_on_host() ||
                           r.architecture.hparams().self_extend.on();
  return !contradicts && std::ranges::all_of(f.tensor_overrides, [&](const auto& override) {
    return override.second == r.devices[0]->info().name;
  });
}

bool is_worth_trying(const FitRequest& r, const Fit& fit) {
  if (r.options.split_mode != SplitMode::automatic) return true;
  const bool all = fit.choice.is_all_on_gpus(r.architecture.hparams().n_layer);
  if (fit.choice.split == SplitMode::none) return all;
  if (fit.choice.split != SplitMode::tensor) return true;
  return fit.placement.parallel && all_have_heads(r, fit.placement);
}

std::vector<OffloadChoice> open_choices(const FitRequest& r) {
  std::vector<OffloadChoice> list;
  for (const SplitMode split : open_splits(r))
    std::ranges::move(open_choices_of(r, split), std::back_inserter(list));
  return list;
}

double compared_seconds(const Fit& fit) {
  constexpr double kSure = 0.97;
  return fit.speed.work_seconds() / (fit.choice.split == SplitMode::layer ? 1 : kSure);
}

}  // namespace tandem
