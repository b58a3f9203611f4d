#include "plan/expert_hits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace tandem {
namespace {

// The probability that a token chooses each expert of a layer; Layer: ExpertLayer or CachedLayer.
template <class Layer>
std::vector<double> choices(const Layer& layer, const ExpertUse* use) {
  std::vector<double> p(static_cast<size_t>(layer.n_expert));
  const auto found =
      use ? use->counts.find(layer.layer) : std::map<int, std::vector<uint64_t>>::const_iterator{};
  if (use && found != use->counts.end() && found->second.size() == p.size()) {
    // Half a use more for each: what was never used may be.
    for (size_t e = 0; e < p.size(); ++e) p[e] = static_cast<double>(found->second[e]) + 0.5;
  } else {
    for (size_t e = 0; e < p.size(); ++e) p[e] = std::pow(static_cast<double>(e + 1), -kUsualExpertSkew);
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& each : p) each = std::min(1.0, each * static_cast<double>(layer.n_used) / sum);
  return p;
}

// The same of the experts that no GPU keeps.
std::vector<double> others(const ExpertLayer& layer, const ExpertUse* use) {
  std::vector<double> p = choices(layer, use);
  std::ranges::sort(p, std::greater());
  p.erase(p.begin(), p.begin() + std::min<ptrdiff_t>(layer.n_on_gpu, std::ssize(p)));
  return p;
}

// That n tokens use it.
double used_by(double p, int64_t n_tokens) {
  return 1 - std::pow(1 - p, static_cast<double>(n_tokens));
}

// Steps after which an expert that has not been used is gone. q: the probability that a step uses each.
double steps_kept(std::vector<double> q, double n_slots) {
  if (n_slots >= static_cast<double>(q.size())) return INFINITY;
  struct Alike {
    double log_unused;  // ln(1 - q)
    double n;           // experts of it: layers without recorded use are alike
  };
  std::ranges::sort(q);
  std::vector<Alike> groups;
  for (size_t i = 0; i < q.size(); ++i) {
    if (i == 0 || q[i] != q[i - 1]) groups.push_back({std::log1p(-q[i]), 0});
    ++groups.back().n;
  }
  constexpr double kClose = 1e-9;
  double low = 0, high = 1e12;
  while (high - low > kClose * high) {
    const double t = low < 1 ? (low + std::min(high, 2.0)) / 2 : std::sqrt(low * high);
    double held = 0;
    for (const Alike& group : groups) held -= group.n * std::expm1(group.log_unused * t);
    (held > n_slots ? high : low) = t;
    if (high < kClose) break;  // not even the slots of a step
  }
  return low;
}

size_t bytes_of(const ExpertLayer& layer) {
  size_t n_bytes = 0;
  for (const Weight* matrix : layer.matrices()) n_bytes += expert_bytes(*matrix);
  return n_bytes;
}

}  // namespace

double ExpertHits::share() const {
  OfLayer all;
  for (const OfLayer& layer : layers) {
    all.n_asked += layer.n_asked;
    all.n_found += layer.n_found;
  }
  return all.share();
}

double ExpertHits::read_bytes() const {
  double sum = 0;
  for (const OfLayer& layer : layers) sum += layer.missing_bytes;
  return sum;
}

ExpertHits expected_hits(const ExpertRoom& room, const ExpertUse* use, int64_t n_tokens) {
  ExpertHits hits;
  hits.layers.resize(room.layers.size());
  // Of the steps that filled the store. Those of many tokens leave it nearly as it is.
  const int64_t n_usual = n_tokens > kFewTokens ? 1 : n_tokens;
  for (const ExpertPool& pool : room.pools) {
    std::vector<double> usual;
    for (const size_t i : pool.layers) {
      for (const double p : others(room.layers[i], use)) usual.push_back(used_by(p, n_usual));
    }
    const double t = steps_kept(std::move(usual), static_cast<double>(pool.n_slots));
    for (const size_t i : pool.layers) {
      const ExpertLayer& layer = room.layers[i];
      ExpertHits::OfLayer& of_layer = hits.layers[i];
      for (const double p : others(layer, use)) {
        const double asked = used_by(p, n_tokens);
        const double missing =
            std::isinf(t) ? 0 : asked * std::pow(1 - used_by(p, n_usual), std::max(0.0, t - 0.5));
        of_layer.n_asked += asked;
        of_layer.n_found += asked - missing;
        of_layer.missing_bytes += missing * static_cast<double>(bytes_of(layer));
      }
    }
  }
  return hits;
}

CacheHits expected_cache_hits(const CachedLayer& layer, const ExpertUse* use, int64_t n_tokens) {
  std::vector<double> p = choices(layer, use);
  std::ranges::sort(p, std::greater());
  CacheHits hits;
  double pairs = 0;
  for (size_t e = 0; e < p.size(); ++e) {
    const bool is_there = e < static_cast<size_t>(layer.n_slots);
    hits.n_asked += used_by(p[e], n_tokens);
    pairs += p[e];
    if (!is_there) continue;
    hits.n_found += used_by(p[e], n_tokens);
    hits.pairs_found += p[e];
  }
  hits.pairs_found /= pairs;
  return hits;
}

std::string expert_use_text(const ExpertUse* use) {
  if (use) return "as recorded";
  return format("assuming Zipf's law with exponent {:g}", kUsualExpertSkew);
}

}  // namespace tandem
