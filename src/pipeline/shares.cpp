#include "pipeline/shares.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace tandem {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Best {
  double slowest = kNever, sum = kNever;
  size_t begin = 0;  // of the last stage

  bool operator<(const Best& other) const {
    return slowest != other.slowest ? slowest < other.slowest : sum < other.sum;
  }
};

}  // namespace

std::optional<double> RankPower::seconds(double n_bytes, double read_bytes) const {
  if (n_bytes > gpu_bytes + host_bytes) return {};
  const double on_gpu = n_bytes > 0 ? std::min(1.0, gpu_bytes / n_bytes) : 0;
  const double gpu_s = gpu_bytes_per_s > 0 ? read_bytes * on_gpu / gpu_bytes_per_s : 0;
  return gpu_s + read_bytes * (1 - on_gpu) / host_bytes_per_s;
}

LayerShares divide_layers(std::span<const LayerLoad> loads, const std::vector<bool>& cuts,
                          std::span<const RankPower> ranks, double n_ctx) {
  const size_t n_layer = loads.size(), n_ranks = ranks.size();
  const auto n_possible = static_cast<size_t>(std::count(cuts.begin() + 1, cuts.end() - 1, true)) + 1;
  if (n_possible < n_ranks) {
    throw_error(ErrorCode::usage,
                "a model of {} layers{} makes at most {} stages, but there are {} ranks: start fewer",
                n_layer, n_possible < n_layer ? " of which some read the cache of others" : "", n_possible,
                n_ranks);
  }
  std::vector<double> n_bytes(n_layer + 1), read(n_layer + 1);  // of the layers before each
  for (size_t i = 0; i < n_layer; ++i) {
    n_bytes[i + 1] = n_bytes[i] + loads[i].n_bytes + loads[i].kv_bytes * n_ctx;
    read[i + 1] = read[i] + loads[i].read_bytes;
  }
  // best[r][end]: ranks 0 .. r have the layers before `end`.
  std::vector<std::vector<Best>> best(n_ranks, std::vector<Best>(n_layer + 1));
  for (size_t r = 0; r < n_ranks; ++r) {
    for (size_t end = 1; end <= n_layer; ++end) {
      if (end < n_layer && !cuts[end]) continue;
      for (size_t begin = 0; begin < end; ++begin) {
        if ((r == 0) != (begin == 0)) continue;
        const Best before = r == 0 ? Best{0, 0, 0} : best[r - 1][begin];
        const auto s = ranks[r].seconds(n_bytes[end] - n_bytes[begin], read[end] - read[begin]);
        if (!s || before.slowest == kNever) continue;
        best[r][end] = std::min(best[r][end], Best{std::max(before.slowest, *s), before.sum + *s, begin});
      }
    }
  }
  LayerShares shares;
  size_t end = n_layer;
  if (best[n_ranks - 1][end].slowest == kNever) {
    double room = 0;
    for (const RankPower& rank : ranks) room += rank.gpu_bytes + rank.host_bytes;
    throw_error(
        ErrorCode::out_of_memory,
        "the model does not fit: its layers take {:.2f} GiB with their cache, and the ranks have {:.2f} GiB",
        n_bytes[n_layer] / (1 << 30), room / (1 << 30));
  }
  shares.slowest_s = best[n_ranks - 1][end].slowest;
  shares.sum_s = best[n_ranks - 1][end].sum;
  for (size_t r = n_ranks; r-- > 0;) {
    const size_t begin = best[r][end].begin;
    shares.ranges.insert(shares.ranges.begin(), {static_cast<int>(begin), static_cast<int>(end)});
    end = begin;
  }
  return shares;
}

std::vector<LayerRange> given_layers(std::span<const int64_t> n_layers, const std::vector<bool>& cuts,
                                     size_t n_ranks) {
  const auto n_model = static_cast<int64_t>(cuts.size()) - 1;
  int64_t sum = 0;
  for (const int64_t n : n_layers) sum += std::clamp<int64_t>(n, 0, n_model + 1);
  const bool all_have_some = std::ranges::all_of(n_layers, [](int64_t n) { return n > 0; });
  if (n_layers.size() != n_ranks || sum != n_model || !all_have_some) {
    throw_error(ErrorCode::usage,
                "layers of each rank: found {} numbers with a sum of {}, needed one of at least 1 for each "
                "of {} ranks, {} together, the "
                "layers of the model",
                n_layers.size(), sum, n_ranks, n_model);
  }
  std::vector<LayerRange> ranges;
  int first = 0;
  for (const int64_t n : n_layers) {
    if (!cuts[static_cast<size_t>(first)]) {
      throw_error(ErrorCode::usage,
                  "layers of each rank: a stage cannot begin with layer {}: it or a later one reads the "
                  "cache of an earlier one",
                  first);
    }
    ranges.push_back({first, first + static_cast<int>(n)});
    first = ranges.back().end;
  }
  return ranges;
}

}  // namespace tandem
