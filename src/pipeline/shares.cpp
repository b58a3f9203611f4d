#include "pipeline/shares.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "plan/footprint.h"

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

size_t whole(double n_bytes) {
  return static_cast<size_t>(std::min(n_bytes, 9e18));
}

// n_bytes: [n_layer + 1], of the layers before each.
[[noreturn]] void throw_no_room(std::span<const double> n_bytes, const std::vector<bool>& cuts,
                                std::span<const RankPower> ranks) {
  double room = 0, smallest = kNever;
  size_t begin = 0;
  for (size_t end = 1; end < n_bytes.size(); ++end) {
    if (end + 1 < n_bytes.size() && !cuts[end]) continue;
    smallest = std::min(smallest, n_bytes[end] - n_bytes[begin]);
    begin = end;
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    const double of_rank = ranks[r].gpu_bytes + ranks[r].host_bytes;
    room += of_rank;
    if (of_rank >= smallest) continue;
    throw_error(ErrorCode::out_of_memory,
                "rank {} has {} of memory, and the smallest part of the model takes {}", r,
                size_text(whole(of_rank)), size_text(whole(smallest)));
  }
  throw_error(ErrorCode::out_of_memory,
              "the model does not fit: its layers take {} with their cache, and the ranks have {} together",
              size_text(whole(n_bytes.back())), size_text(whole(room)));
}

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
    read[i + 1] = read[i] + loads[i].read_bytes + loads[i].kv_bytes * n_ctx / 2;  // half full
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
  if (best[n_ranks - 1][end].slowest == kNever) throw_no_room(n_bytes, cuts, ranks);
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
