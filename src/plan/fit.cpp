#include "plan/fit.h"

#include <map>

#include "base/error.h"

namespace tandem {
namespace {

// Moves what its device cannot run to the host: nodes of weights by their weights, attention with the layer's
// cache.
std::vector<std::string> fall_back(const FitRequest& r, Placement& placement) {
  std::map<std::string, int> reasons;
  const Graph& graph = *r.graphs[0];
  for (const Node& node : graph.nodes) {
    const Device& device = *r.devices[static_cast<size_t>(placement.device_of(graph, node))];
    const std::string why = device.why_unsupported(graph, node);
    if (why.empty()) continue;
    ++reasons[std::string(op_name(node.op)) + " on " + device.info().name + ": " + why];
    if (std::holds_alternative<AttentionOp>(node.op) || std::holds_alternative<KvWriteOp>(node.op)) {
      placement.layers[static_cast<size_t>(node.layer)].kv = 0;
      continue;
    }
    for (TensorId id : node.inputs) {
      if (id != kNoTensor && graph.tensor(id).weight) placement.overrides[graph.tensor(id).weight] = 0;
    }
  }
  std::vector<std::string> list;
  for (const auto& [reason, n] : reasons) list.push_back(std::to_string(n) + " x " + reason);
  return list;
}

Fit fit_with(const FitRequest& r, int64_t n_gpu_layers) {
  Fit result;
  result.n_gpu_layers = n_gpu_layers;
  result.placement = place(r.architecture, r.weights, r.devices, r.flags, n_gpu_layers);
  result.fallbacks = fall_back(r, result.placement);
  result.bytes = footprint(r.graphs, r.devices, result.placement, r.kv);
  return result;
}

// The first GPU that cannot hold its part beside `reserve` bytes; 0 when all can. Host memory is for the
// system to judge: it may be overcommitted.
size_t first_too_small(const FitRequest& r, const Footprint& bytes, size_t reserve) {
  for (size_t d = 1; d < r.devices.size(); ++d) {
    if (r.devices[d]->info().host_memory || bytes.devices[d].total() == 0) continue;
    if (bytes.devices[d].total() + reserve > r.devices[d]->memory_info().free_bytes) return d;
  }
  return 0;
}

Fit largest_that_fits(const FitRequest& r, size_t reserve) {
  // Not every number of layers needs more than the one before (an arena may shrink), so they are tried from
  // the top.
  for (int64_t n = r.architecture.hparams().n_layer + 1; n > 0; --n) {
    Fit candidate = fit_with(r, n);
    if (first_too_small(r, candidate.bytes, reserve) == 0) return candidate;
  }
  return fit_with(r, 0);
}

bool fits_with_kv(const FitRequest& r, int64_t n_gpu_layers, const KvConfig& kv) {
  const FitRequest other{r.architecture, r.weights, r.devices, r.flags, kv, r.graphs};
  return first_too_small(other, fit_with(other, n_gpu_layers).bytes, 0) == 0;
}

// "-ngl 17, -c 8192, or -ctk q8_0 -ctv q8_0": each alone would fit.
std::string advice(const FitRequest& r, int64_t n_gpu_layers) {
  std::vector<std::string> ways;
  const int64_t n = largest_that_fits(r, 0).n_gpu_layers;
  ways.push_back("-ngl " + std::to_string(n));
  KvConfig kv = r.kv;
  while (kv.n_ctx > 512 && !fits_with_kv(r, n_gpu_layers, kv)) kv.n_ctx /= 2;
  if (kv.n_ctx < r.kv.n_ctx && fits_with_kv(r, n_gpu_layers, kv))
    ways.push_back("-c " + std::to_string(kv.n_ctx));
  kv = r.kv;
  kv.k_dtype = kv.v_dtype = DType::Q8_0;
  bool cacheable = true;
  for (const KvShape& s : kv.layers) cacheable &= s.head_dim_k % 32 == 0 && s.head_dim_v % 32 == 0;
  if (cacheable && fits_with_kv(r, n_gpu_layers, kv)) ways.push_back("-ctk q8_0 -ctv q8_0");
  std::string text;
  for (size_t i = 0; i < ways.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ways.size() ? " or " : ", ") + ways[i];
  return text;
}

}  // namespace

Fit fit(const FitRequest& r) {
  if (r.devices.size() < 2) return fit_with(r, 0);
  if (!r.flags.n_gpu_layers) return largest_that_fits(r, kReserve);
  Fit result = fit_with(r, *r.flags.n_gpu_layers);
  const size_t d = first_too_small(r, result.bytes, 0);
  if (d != 0) {
    throw_error(ErrorCode::out_of_memory, "%s: -ngl %lld needs %zu bytes and %zu are free; %s would fit",
                r.devices[d]->info().name.c_str(), static_cast<long long>(result.n_gpu_layers),
                result.bytes.devices[d].total(), r.devices[d]->memory_info().free_bytes,
                advice(r, result.n_gpu_layers).c_str());
  }
  return result;
}

}  // namespace tandem
