#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/overloaded.h"
#include "exec/kv_stream.h"
#include "exec/placed_graph.h"
#include "plan/fit.h"
#include "plan/generic_kernels.h"
#include "plan/kv_formats.h"
#include "plan/overlap.h"

namespace tandem {
namespace {

std::string mib(size_t bytes) {
  return format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// Where weights are: on disk, or on a device.
struct Disk {
  auto operator<=>(const Disk&) const = default;
};
using Place = std::variant<Disk, DeviceId>;

// Bytes of a layer's weights by where they are, and which of them are experts.
struct LayerWeights {
  std::map<Place, size_t> bytes;
  bool has_experts = false;
};

std::map<int, LayerWeights> weights_by_layer(const FitRequest& r, const Fit& fit) {
  std::map<int, LayerWeights> layers;
  const PlacedGraph placed(*r.graphs[0], fit.placement);
  const Graph& graph = fit.placement.parallel ? *placed : *r.graphs[0];
  for (const Node& node : graph.nodes) {
    LayerWeights& layer = layers[node.layer];
    const DeviceId device = fit.placement.runs_on(graph, node);
    layer.has_experts |= std::holds_alternative<MoeFfnOp>(node.op);
    for (TensorId id : inputs_of(node.op)) {
      if (graph.tensor(id).weight == nullptr) continue;
      const Weight& w = *graph.tensor(id).weight;
      Place place = device;
      if (fit.placement.streams(graph, node, w)) {
        place = fit.placement.on_disk(w) ? Place(Disk{}) : DeviceId::host();
      }
      if (fit.placement.takes_chosen(graph, node, w)) place = Disk{};
      layer.bytes[place] +=
          std::holds_alternative<EmbedOp>(node.op) ? row_bytes(w.dtype, w.n_cols) : w.n_bytes();
    }
  }
  return layers;
}

const std::string& name_of(const FitRequest& r, DeviceId device) {
  return r.devices[device.index()]->info().name;
}

std::string in_places(const FitRequest& r, const std::map<Place, size_t>& bytes) {
  std::string text;
  for (const auto& [place, n] : bytes) {
    const auto* device = std::get_if<DeviceId>(&place);
    text += (text.empty() ? "" : " + ") + (device ? name_of(r, *device) : "disk") + " " + mib(n);
  }
  return text;
}

std::string percent(double share) {
  return format("{:.0f}%", 100 * share);
}

// ", 90% of the rows in prefill and 40% in decoding, the CPU computing the others"
std::string divided_text(const WeightHome& home) {
  const double prefill = row_share(home, StepKind::prefill), decode = row_share(home, StepKind::decode);
  if (prefill == 1 && decode == 1) return "";
  std::string text = ", ";
  if (prefill < 1) text += percent(prefill) + " of the rows in prefill";
  if (decode < 1) {
    text +=
        (prefill < 1 ? " and " : "") + percent(decode) + (prefill < 1 ? "" : " of the rows") + " in decoding";
  }
  return text + ", the CPU computing the others";
}

// "GPU0 4 heads 4.0 MiB + GPU1 4 heads 4.0 MiB", or of copies "GPU0 8.0 MiB + GPU1 8.0 MiB". No text if it is not divided.
std::string divided_cache_text(const FitRequest& r, const KvHome& home, size_t layer) {
  std::string text;
  const auto* state = std::get_if<DividedState>(&home);
  const HeadPools heads = divided_pools(home, r.kv.layers[layer]);
  for (const HeadPools::Pool& pool : heads.pools) {
    text += (text.empty() ? "" : " + ") + name_of(r, pool.device);
    if (state) {
      const auto i =
          static_cast<size_t>(std::ranges::find(state->devices, pool.device) - state->devices.begin());
      text += format(" {} {}", state->heads_of(i), state->are_channels ? "channels" : "heads");
    } else if (!heads.are_copies) {
      text += format(" {} heads", pool.n_head_kv);
    }
    text += " " + mib(kv_layer_bytes(pool_shape(kv_layer_shape(r.kv, layer), pool)));
  }
  return text;
}

// "CPU 8.0 MiB", or of a cache in two parts "GPU0 1.0 MiB + CPU 8.0 MiB".
std::string cache_text(const FitRequest& r, const Placement& placement, size_t layer) {
  const KvHome& home = placement.layers[layer].kv;
  const std::string whole = name_of(r, holder(home)) + " " + mib(kv_layer_bytes(r.kv, layer, holder(home)));
  const std::string divided = divided_cache_text(r, home, layer);
  if (!divided.empty()) return divided;
  return std::visit(
      Overloaded{[&](const ResidentKv&) { return whole; }, [&](const DividedKv&) { return whole; },
                 [&](const DividedState&) { return whole; },
                 [&](const PrefetchedKv& kv) {
                   return whole + (kv.for_prefill_alone ? ", prompts " : " for ") + name_of(r, kv.to);
                 },
                 [&](const SpilledKv&) { return whole + " + disk"; },
                 [&](const SplitKv& kv) {
                   const size_t n_bytes = kv_layer_bytes(kv_layer_shape(r.kv, layer, kv.n_blocks));
                   return name_of(r, kv.hot) + " " + mib(n_bytes) + " + " + whole;
                 }},
      home);
}

// Of the weights or else of the experts, that which the host holds; null when GPUs hold both.
const WeightHome* held_by_host(const LayerPlacement& p) {
  if (holder(p.weights).is_host()) return &p.weights;
  return holder(p.experts).is_host() ? &p.experts : nullptr;
}

// Of the experts that a decode step uses in a layer, the shares that are expected on a GPU, and of the others in memory.
struct HitsOfLayer {
  std::optional<double> on_gpu, in_memory;
};
std::map<int, HitsOfLayer> hits_by_layer(const FitRequest& r, const Fit& fit) {
  std::map<int, HitsOfLayer> layers;
  const StepLoad load = decode_load(r);
  const PlacedGraph placed(*r.graphs.front(), fit.placement);
  for (const CachedLayer& layer : cached_layers(*placed, fit.placement)) {
    const CacheHits hits = expected_cache_hits(layer, load.expert_use, load.n_tokens);
    layers[layer.layer].on_gpu = hits.n_found / hits.n_asked;
  }
  const ExpertRoom room = expert_room(*r.graphs.front(), fit.placement);
  const ExpertHits hits = expected_hits(r, fit.placement);
  for (size_t i = 0; i < room.layers.size(); ++i)
    layers[room.layers[i].layer].in_memory = hits.layers[i].share();
  return layers;
}

// "  streamed to GPU0", of what the host holds, "  32 experts on GPU0 too; finds 40% there, 90% of the others in memory".
std::string streamed_text(const FitRequest& r, const LayerPlacement& p, const HitsOfLayer& hits) {
  const WeightHome* held = held_by_host(p);
  if (!held) return "";
  std::string also;
  if (const CachedExperts* cached = cached_experts(p.experts, StepKind::decode))
    also = format("  {} experts on {} too", cached->n_slots, name_of(r, cached->on));
  if (hits.on_gpu) also += "; finds " + percent(*hits.on_gpu) + " there";
  if (hits.in_memory) {
    also += (hits.on_gpu ? ", " : "  finds ") + percent(*hits.in_memory) +
            (hits.on_gpu ? " of the others in memory" : " of the experts in memory");
  }
  const std::optional<GpuId> prefill = streamed_to(*held, StepKind::prefill);
  const std::optional<GpuId> decode = streamed_to(*held, StepKind::decode);
  if (!prefill && !decode) return also;
  return also + "  streamed to " + name_of(r, prefill ? *prefill : *decode) + (decode ? "" : " in prefill") +
         divided_text(*held);
}

// Describes the layers that are not completely on GPUs.
std::string rest_text(const Placement& placement) {
  int64_t n_computed = 0, n_experts = 0, n_prefill = 0, n_streamed = 0;
  std::string divided;
  for (const LayerPlacement& p : placement.layers) {
    const WeightHome* held = held_by_host(p);
    if (!held) continue;
    if (streamed_to(*held, StepKind::decode)) {
      ++n_streamed;
      divided = divided_text(*held);
      continue;
    }
    ++(held == &p.weights ? n_computed : n_experts);
    if (streamed_to(*held, StepKind::prefill)) ++n_prefill;
  }
  std::string text;
  const auto add = [&](int64_t n, const char* what) {
    if (n > 0) text += format("; {} {}", n, what);
  };
  add(n_streamed, "streamed there for every step");
  text += divided;
  add(n_computed, "on the CPU");
  add(n_experts, "with their experts on the CPU");
  for (const LayerPlacement& p : placement.layers) {
    const CachedExperts* cached = cached_experts(p.experts, StepKind::decode);
    if (!cached) continue;
    text += format(", {} of them there too", cached->n_slots);
    break;
  }
  if (n_prefill > 0) text += ", streamed there for prompts";
  return text;
}

std::string cache_summary(const Placement& placement) {
  if (const SplitKv* split = placement.split()) {
    return format("; the cache of the newest {} tokens there, older ones on the CPU", split->n_keep);
  }
  bool prefetched = false, for_prompts = false, apart = false, beside = false;
  for (const LayerPlacement& p : placement.layers) {
    if (const auto* kv = std::get_if<PrefetchedKv>(&p.kv))
      (kv->for_prefill_alone ? for_prompts : prefetched) = true;
    beside |= !holder(p.kv).is_host();
    apart |= attends_on(p.kv, StepKind::decode).is_host() && !computes_on(p.weights, StepKind::decode).is_host();
  }
  return prefetched    ? "; the KV cache brought there from host memory"
         : for_prompts ? (beside ? "; the CPU's part of the KV cache brought there for prompts"
                                 : "; the KV cache on the CPU, brought there for prompts")
         : apart       ? "; the KV cache on the CPU"
                       : "";
}

}  // namespace

std::string summary(const DeviceModels& devices, const Fit& fit) {
  if (devices.size() < 2) return "";
  std::string text;
  size_t n_bytes = 0;
  for (size_t d = 1; d < devices.size(); ++d) {
    text += (d > 1 ? ", " : "") + devices[d]->info().name;
    n_bytes += fit.bytes.devices[d].total();
  }
  const std::vector<LayerPlacement>& layers = fit.placement.layers;
  const auto n_resident =
      std::ranges::count_if(layers, [](const LayerPlacement& p) { return p.is_resident(); });
  text += n_resident == static_cast<int64_t>(layers.size())
              ? ": all layers"
              : format(": {} of {} layers", n_resident, layers.size());
  if (!fit.placement.output.is_host()) text += " and the output";
  text += " (" + size_text(n_bytes) + ")";
  if (fit.placement.parallel) text += ", each over all of these GPUs";
  text += rest_text(fit.placement) + cache_summary(fit.placement);
  if (fit.bytes.disk_weights > 0) text += "; " + size_text(fit.bytes.disk_weights) + " of weights on disk";
  if (fit.speed.decode_tokens_per_s > 0) {
    text += format("; predicted {:.1f} t/s for prompts, {:.1f} t/s decoding", fit.speed.prefill_tokens_per_s,
                   fit.speed.decode_tokens_per_s);
  }
  return text;
}

ExpertHits expected_hits(const FitRequest& r, const Placement& placement) {
  const StepLoad load = decode_load(r);
  return expected_hits(expert_room(*r.graphs.front(), placement), load.expert_use, load.n_tokens);
}

std::string experts_text(const FitRequest& r, const Fit& fit) {
  if (fit.bytes.expert_slots == 0) return "";
  const ExpertRoom room = expert_room(*r.graphs.front(), fit.placement);
  const ExpertHits hits = expected_hits(r, fit.placement);
  const bool on_gpus = fit.placement.caches_experts(StepKind::decode);
  return format("{} of memory hold {} of {} experts; decoding finds {}{} there, {}, and reads {} a step",
                size_text(room.n_bytes()), room.n_slots(), room.n_experts(), percent(hits.share()),
                on_gpus ? " of what GPUs lack" : "", expert_use_text(r.options.expert_use.get()),
                size_text(static_cast<size_t>(hits.read_bytes())));
}

KeptExperts kept_experts(const FitRequest& r, const Placement& placement) {
  const PlacedGraph placed(*r.graphs.front(), placement);
  const StepLoad load = decode_load(r);
  KeptExperts all;
  for (const CachedLayer& layer : cached_layers(*placed, placement)) {
    const CacheHits hits = expected_cache_hits(layer, load.expert_use, load.n_tokens);
    all.n_asked += hits.n_asked;
    all.n_found += hits.n_found;
    all.n_slots += layer.n_slots;
    all.n_experts += layer.n_expert;
    all.fetched = layer.fetched;
  }
  return all;
}

std::string cached_experts_text(const FitRequest& r, const Fit& fit) {
  const KeptExperts kept = kept_experts(r, fit.placement);
  if (kept.n_slots == 0) return "";
  std::string text = format("{} of {} experts; decoding finds {} there, {}", kept.n_slots, kept.n_experts,
                            percent(kept.share()), expert_use_text(r.options.expert_use.get()));
  if (kept.fetched > 0)
    text += format("; of the others {} are brought there, as far as that is whole experts",
                   percent(kept.fetched));
  return text;
}

std::string explain(const FitRequest& r, const Fit& fit) {
  const auto n_layer = static_cast<int>(r.architecture.hparams().n_layer);
  std::string text = format("{:<8} {:<34} {:<10} {}\n", "layer", "weights", "experts", "KV cache");
  std::map<int, HitsOfLayer> hits = hits_by_layer(r, fit);
  for (const auto& [layer, weights] : weights_by_layer(r, fit)) {
    const std::string where = in_places(r, weights.bytes);
    if (layer < 0 || layer >= n_layer) {
      text += format("{:<8} {:<34}\n", layer < 0 ? "input" : "output", where);
      continue;
    }
    const LayerPlacement& p = fit.placement.layers[layer];
    text +=
        format("{:<8} {:<34} {:<10} {}{}\n", layer, where,
               weights.has_experts ? name_of(r, holder(p.experts)).c_str() : "-",
               cache_text(r, fit.placement, static_cast<size_t>(layer)), streamed_text(r, p, hits[layer]));
  }
  text += format("\n{:<8} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14}\n", "device", "weights",
                 "KV cache", "activations", "staging", "scratch", "total", "free");
  for (size_t d = 0; d < r.devices.size(); ++d) {
    const DeviceBytes& b = fit.bytes.devices[d];
    text += format("{:<8} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14}\n", r.devices[d]->info().name,
                   mib(b.weights), mib(b.kv), mib(b.activations), mib(b.staging), mib(b.scratch),
                   mib(b.total()), mib(r.devices.memory(d).free_bytes));
  }
  if (const std::string rotated = kv_rotation_text(r.kv); !rotated.empty())
    text += "KV cache: heads are rotated before they are stored: " + rotated + "\n";
  if (const SparseReads reads = r.graphs.front()->shape.sparse; reads.on()) {
    text +=
        format("KV cache: the CPU reads {} positions of it for a token, chosen by {} components of keys\n",
               reads.n_read(), reads.n_components);
  }
  if (const SplitKv* split = fit.placement.split()) {
    text += format("the newest {} tokens' cache is on the GPU, and up to {}, the older ones' on the CPU\n",
                   split->n_keep, split->n_blocks * r.kv.block_size);
  }
  if (r.kv.n_memory_blocks > 0) {
    text += format(
        "KV cache: the newest {} tokens in memory; with a full context {} on disk, of which a token reads "
        "{}\n",
        r.kv.n_memory_blocks * r.kv.block_size, mib(fit.bytes.disk_kv), mib(fit.bytes.per_token.kv_disk));
  }
  text += format("mapped from the file and read by the CPU: {}\n", mib(fit.bytes.mapped_weights));
  const BusBytes& bus = fit.bytes.per_token;
  if (fit.bytes.disk_weights > 0) {
    text += format("read from disk: {} of weights, {} bytes for every decoded token{}\n",
                   mib(fit.bytes.disk_weights), bus.disk,
                   fit.bytes.expert_slots > 0 ? ", and of experts the chosen ones" : "");
  }
  if (fit.bytes.expert_slots > 0) text += "chosen experts: " + experts_text(r, fit) + "\n";
  const std::string cached = cached_experts_text(r, fit);
  if (!cached.empty()) text += "experts on GPUs: " + cached + "\n";
  text += format(
      "bus, per decoded token: {} bytes of activations in {} copies, {} of logits, {} of step inputs and "
      "{} "
      "for each cache block in use\n",
      bus.activations, bus.n_transfers, bus.logits, bus.inputs, bus.inputs_per_block);
  for (size_t d = 1; d < bus.collectives.size(); ++d) {
    text += format("link of {}, per decoded token: {} bytes of {} all-reduces and {} all-gathers\n",
                   r.devices[d]->info().name, bus.collectives[d], bus.n_all_reduce, bus.n_all_gather);
  }
  if (bus.kv_out > 0) {
    text += format("bus, per decoded token: {} bytes of cache for each block in use, and {} back\n",
                   bus.kv_in_per_block, bus.kv_out);
  }
  if (bus.kv_moved_per_block > 0) {
    text += format(
        "bus, per decoded token: {} bytes of step inputs for each block of the hot cache in use; and for "
        "every {} "
        "tokens {} bytes of cache that go to the host\n",
        bus.inputs_per_hot_block, r.kv.block_size, bus.kv_moved_per_block);
  }
  if (bus.weights > 0) {
    const int64_t n = r.graphs.front()->shape.max_sequences;
    const std::string of = n > 1 ? format("step of {} decoded tokens", n) : "decoded token";
    text += format("bus, per {}: {} bytes of streamed weights\n", of, bus.weights);
  }
  const auto any_streams = [&](StepKind kind) {
    return std::ranges::any_of(fit.placement.layers, [&](const LayerPlacement& p) {
      const WeightHome* held = held_by_host(p);
      return held && streamed_to(*held, kind);
    });
  };
  if (fit.placement.pins_fetched &&
      (any_streams(StepKind::prefill) || any_streams(StepKind::decode) || !cached.empty()))
    text += "weights and caches in host memory that GPUs fetch often: page-locked after some steps\n";
  if (fit.speed.decode_tokens_per_s > 0) {
    text += format("predicted: {:.1f} tokens/s prefill, {:.1f} tokens/s decode\n",
                   fit.speed.prefill_tokens_per_s, fit.speed.decode_tokens_per_s);
  }
  text += parts_text(r, fit);
  if (const std::string ways = split_text(r, fit); !ways.empty()) text += "over GPUs: " + ways + "\n";
  if (any_streams(StepKind::prefill)) {
    text += format("prompts: {} tokens a step, for all of which the streamed weights cross the bus once\n",
                   r.graphs.back()->shape.max_tokens);
  }
  const std::string generic = generic_kernels(r.graphs, r.devices, fit.placement);
  if (!generic.empty()) text += generic + "\n";
  if (fit.fallbacks.empty()) text += "every op runs where it was placed\n";
  for (const std::string& fallback : fit.fallbacks) text += "runs on the CPU instead: " + fallback + "\n";
  return text;
}

}  // namespace tandem
