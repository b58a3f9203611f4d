#include "gguf/quants_grid.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "gguf/quants_lanes.h"

namespace tandem::quants {
namespace {

constexpr float kEighth = 0.125f;
// Scales that are tried: so many times the one that makes the largest level the largest magnitude. The last two are
// for elements of one size, which are a lower level of IQ2.
constexpr float kTried[] = {1.0f, 0.77f, 0.59f, 0.4f, 1.15f, 0.88f, 0.68f, 0.5f, 0.3f, 1.7f, 5.4f};
constexpr int kLargeGrid = 2048, kTriedOfLarge = 4;
constexpr int kRounds = 3;

}  // namespace

GridFitter::GridFitter(const GridType& type) : type_(type) {
  const int bits = type.width == 4 ? 3 : 2;
  const auto n = static_cast<size_t>(type.n);
  for (int j = 0; j < type.width; ++j) {
    for (int i = 0; i < type.n; ++i)
      levels_.push_back(type.levels[type.codes[i] >> j * bits & ((1 << bits) - 1)]);
  }
  const size_t size = static_cast<size_t>(type.n_vectors()) * n;
  tables_[kA].resize(size);
  tables_[kB].resize(size);
  if (type.signs == GridSigns::even || type.delta != GridDelta::none) tables_[kSecondA].resize(size);
  if (type.delta != GridDelta::none) tables_[kSecondB].resize(size);
}

// Fills the tables for x divided by its largest magnitude, which is returned; 0 when there is nothing to fit.
float GridFitter::prepare(const float* x, const float* importance) {
  const float size = std::fabs(signed_max(x, 256)), inverse_size = inverse(size);
  if (inverse_size == 0.0f) return 0.0f;
  for (int e = 0; e < 256; ++e) x_[e] = x[e] * inverse_size;
  static constexpr std::array<float, 256> kOnes = [] {
    std::array<float, 256> ones{};
    ones.fill(1.0f);
    return ones;
  }();
  importance_weights(x_, importance ? importance : kOnes.data(), 256, 2 * mean_square(x_, 256), w_);
  std::fill(signs_, signs_ + 32, uint8_t{0});
  if (type_.signs != GridSigns::none) {
    for (int e = 0; e < 256; ++e) {
      if (x_[e] < 0.0f) signs_[e / 8] = static_cast<uint8_t>(signs_[e / 8] | 1 << e % 8);
      x_[e] = std::fabs(x_[e]);
    }
  }
  for (int v = 0; v < type_.n_vectors(); ++v) {
    const float *xs = x_ + v * type_.width, *ws = w_ + v * type_.width;
    float *a = table(kA, v), *b = table(kB, v);
    grid_products(levels_.data(), type_.n, type_.width, xs, ws, a, b);
    if (type_.signs == GridSigns::even) {
      grid_flips(levels_.data(), type_.n, type_.width, xs, ws, a, table(kSecondA, v));
    } else if (type_.delta != GridDelta::none) {
      grid_deltas(levels_.data(), type_.n, type_.width, xs, ws, kEighth, a, b, table(kSecondA, v),
                  table(kSecondB, v));
    }
  }
  return size;
}

// Makes the best entry for the vector its choice, from the first tables or from the second.
void GridFitter::take(Choice& to, int v, int vector, bool second, float scale) const {
  const float* a = table(second ? kSecondA : kA, vector);
  const float* b = table(second && type_.delta != GridDelta::none ? kSecondB : kB, vector);
  const int best = best_entry(a, b, type_.n, scale);
  to.index[v] = static_cast<uint16_t>(best);
  to.second[v] = second;
  to.a += a[best];
  to.b += b[best];
  to.loss += scale * (scale * b[best] - 2.0f * a[best]);
}

GridFitter::Choice GridFitter::choose(int sub, float scale) const {
  const int per_sub = type_.per_sub(), first = sub * per_sub;
  const auto all = [&](bool second) {
    Choice choice;
    for (int v = 0; v < per_sub; ++v) take(choice, v, first + v, second, scale);
    return choice;
  };
  const auto add = [](Choice& to, const Choice& vector, int v) {
    to.a += vector.a;
    to.b += vector.b;
    to.loss += vector.loss;
    to.index[v] = vector.index[v];
    to.second[v] = vector.second[v];
  };
  if (type_.delta == GridDelta::per_sub_block) {
    const Choice added = all(false), subtracted = all(true);
    return subtracted.loss < added.loss ? subtracted : added;
  }
  if (type_.signs == GridSigns::free) return all(false);
  Choice choice;
  if (type_.delta == GridDelta::per_vector) {
    for (int v = 0; v < per_sub; ++v) {
      Choice added, subtracted;
      take(added, v, first + v, false, scale);
      take(subtracted, v, first + v, true, scale);
      add(choice, subtracted.loss < added.loss ? subtracted : added, v);
    }
    return choice;
  }
  const int group = 8 / type_.width;  // vectors of eight elements
  for (int v = 0; v < per_sub; v += group) {
    Choice plain[2], flipped[2];
    const bool odd = __builtin_popcount(signs_[(first + v) / group]) % 2 != 0;
    int flip = -1;
    for (int i = 0; i < group; ++i) {
      take(plain[i], v + i, first + v + i, false, scale);
      if (!odd) continue;
      take(flipped[i], v + i, first + v + i, true, scale);
      if (flip < 0 || flipped[i].loss - plain[i].loss < flipped[flip].loss - plain[flip].loss) flip = i;
    }
    for (int i = 0; i < group; ++i) add(choice, i == flip ? flipped[i] : plain[i], v + i);
  }
  return choice;
}

// Searches the scale with the least loss.
float GridFitter::best_scale(int sub, Choice& choice) const {
  const float largest = std::fabs(signed_max(x_ + sub * type_.sub, type_.sub));
  const float highest = *std::max_element(type_.levels, type_.levels + 8);
  float best = 0.0f;
  choice = Choice{};
  const auto consider = [&](float scale) {
    const Choice found = choose(sub, scale);
    if (!(found.b > 0.0f && found.a > 0.0f)) return false;
    const float solved = found.a / found.b, loss = -found.a * solved;
    if (!(loss < choice.loss)) return false;
    choice = found;
    choice.loss = loss;
    best = solved;
    return true;
  };
  const int n_tries = type_.n < kLargeGrid ? static_cast<int>(std::size(kTried)) : kTriedOfLarge;
  for (int i = 0; i < n_tries; ++i) consider(kTried[i] * largest / highest);
  for (int round = 0; round < kRounds && best > 0.0f && consider(best); ++round) {}
  return best;
}

namespace {

int nearest_odd(float v, int odd_max) {
  return 2 * nearest_in(0.5f * (v - 1.0f), 0, (odd_max - 1) / 2) + 1;
}

// v ~ d * odd with weights w, all [n]: returns d.
float fit_odd_scales(const float* v, const float* w, int n, int odd_max, int* odd) {
  const float largest = *std::max_element(v, v + n);
  float best_d = 0.0f, most = 0.0f;
  for (float top = static_cast<float>(odd_max) * 0.5f; top < static_cast<float>(odd_max) + 2.0f;
       top += 0.25f) {
    float vs = 0.0f, ss = 0.0f;
    for (int i = 0; i < n; ++i) {
      const auto s = static_cast<float>(nearest_odd(v[i] * top / largest, odd_max));
      vs += w[i] * v[i] * s;
      ss += w[i] * s * s;
    }
    if (!(ss > 0.0f && vs * vs > most * ss)) continue;
    most = vs * vs / ss;
    best_d = vs / ss;
  }
  for (int i = 0; i < n; ++i) odd[i] = best_d > 0.0f ? nearest_odd(v[i] / best_d, odd_max) : 1;
  return best_d;
}

}  // namespace

// Chooses the entries of all sub-blocks for d; returns the loss.
float GridFitter::choose_all(float d, const int* odd, Choice* choices) const {
  float loss = 0.0f;
  for (int s = 0; s < type_.n_subs(); ++s) {
    choices[s] = choose(s, d * static_cast<float>(odd[s]));
    loss += choices[s].loss;
  }
  return loss;
}

uint8_t GridFitter::signs_of(int group, const Choice& choice, int first) const {
  int signs = signs_[group];
  for (int v = first; v < first + 8 / type_.width; ++v) {
    if (type_.signs != GridSigns::even || !choice.second[v]) continue;
    const int vector = group * 8 / type_.width + v - first, n_before = (v - first) * type_.width;
    int flip = 0;
    float least = INFINITY;
    for (int j = 0; j < type_.width; ++j) {
      const int e = vector * type_.width + j;
      const float level = levels_[static_cast<size_t>(j * type_.n + choice.index[v])];
      const float product = x_[e] * (w_[e] * level);
      if (!(product < least)) continue;
      least = product;
      flip = n_before + j;
    }
    signs ^= 1 << flip;
  }
  return static_cast<uint8_t>(signs);
}

void GridFitter::write(const Choice* choices, const int* odd, GridBlock& block) const {
  const int per_sub = type_.per_sub(), group = 8 / type_.width;
  for (int s = 0; s < type_.n_subs(); ++s) {
    block.scales[s] = static_cast<uint8_t>(odd[s] / 2);
    for (int v = 0; v < per_sub; ++v) {
      const int vector = s * per_sub + v;
      block.index[vector] = choices[s].index[v];
      if (type_.delta != GridDelta::none) block.subtracted[vector] = choices[s].second[v];
      if (v % group == 0) block.signs[vector / group] = signs_of(vector / group, choices[s], v);
    }
  }
}

void GridFitter::fit(const float* x, const float* importance, GridBlock& block) {
  block = {};
  const float size = prepare(x, importance);
  if (size == 0.0f) return;
  const int n_subs = type_.n_subs();
  float scales[16], weights[16];
  int odd[16];
  Choice choices[16];
  for (int s = 0; s < n_subs; ++s) {
    scales[s] = best_scale(s, choices[s]);
    weights[s] = choices[s].b;
  }
  const float to_half = size / type_.unit;  // d of the file for a scale of x_
  const auto stored = [&](float d) { return fp16_to_fp32(to_scale(d * to_half)) / to_half; };
  float d = stored(fit_odd_scales(scales, weights, n_subs, type_.odd_max, odd));
  if (!(d > 0.0f)) return;
  for (int s = 0; s < n_subs; ++s) {
    const int middle = odd[s];
    choices[s] = choose(s, d * static_cast<float>(middle));
    for (const int candidate : {middle - 2, middle + 2}) {
      if (candidate < 1 || candidate > type_.odd_max) continue;
      const Choice found = choose(s, d * static_cast<float>(candidate));
      if (!(found.loss < choices[s].loss)) continue;
      choices[s] = found;
      odd[s] = candidate;
    }
  }
  float loss = 0.0f;
  for (int s = 0; s < n_subs; ++s) loss += choices[s].loss;
  for (int round = 0; round < kRounds; ++round) {
    float a = 0.0f, b = 0.0f;
    for (int s = 0; s < n_subs; ++s) {
      a += choices[s].a * static_cast<float>(odd[s]);
      b += choices[s].b * static_cast<float>(odd[s] * odd[s]);
    }
    const float solved = stored(a / b);
    Choice again[16];
    if (!(solved > 0.0f) || solved == d) break;
    const float found = choose_all(solved, odd, again);
    if (!(found < loss)) break;
    std::copy(again, again + n_subs, choices);
    loss = found;
    d = solved;
  }
  block.d = to_scale(d * to_half);
  write(choices, odd, block);
}

}  // namespace tandem::quants
