// Fits the super-blocks of the IQ types with grids: 256 elements in vectors of eight (four for IQ3), each an entry of
// the grid times d and a small odd integer, which each sub-block of 32 or 16 elements has. Internal to gguf/.
//
// For a scale s the best entry has the least s^2 B - 2 s A, with A = sum of w x g and B = sum of w g^2 over the vector.
// A and B of every entry are computed once; then every scale that is tried finds the best entries, and the best choice
// of the sign that a type cannot write, by looking at all of them. Stages: search the scale of each sub-block;
// approximate the scales by odd integers times d; try the neighbours of each integer; solve for d and choose again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/fp16.h"

namespace tandem::quants {

enum class GridSigns {
  none,  // the grid has negative levels
  free,  // a bit for each element
  even,  // seven bits for eight elements; an even number of them is negative
};
// An eighth that is added to the levels, or taken from them.
enum class GridDelta { none, per_sub_block, per_vector };

struct GridType {
  const uint16_t* codes;  // [n], packed as in grids.h
  int n, width;           // entries; elements of each: 8 or 4
  float levels[8];        // of the codes
  int sub;                // elements that share a scale: 32 or 16
  GridSigns signs;
  GridDelta delta;
  int odd_max;  // scale = d * unit * odd, with odd = 1, 3, ..., odd_max
  float unit;

  int n_vectors() const { return 256 / width; }
  int n_subs() const { return 256 / sub; }
  int per_sub() const { return sub / width; }  // vectors
};

// What a super-block stores.
struct GridBlock {
  fp16_t d;
  uint8_t scales[16];   // (odd - 1) / 2 of each sub-block
  uint16_t index[64];   // of each vector
  uint8_t signs[32];    // of each eight elements, bit j for a negative element j
  bool subtracted[32];  // of each vector: the delta is taken away
};

// Keeps its tables from block to block; one for a row. Any thread, nothing thrown.
class GridFitter {
 public:
  explicit GridFitter(const GridType& type);

  // x: [256], importance: [256] or null.
  void fit(const float* x, const float* importance, GridBlock& block);

 private:
  static constexpr int kMaxVectors = 8;  // of a sub-block
  struct Choice {
    float loss = 0.0f, a = 0.0f, b = 0.0f;  // loss = s^2 b - 2 s a, of the whole sub-block
    uint16_t index[kMaxVectors];
    bool second[kMaxVectors];  // with the other delta, or with one sign flipped
  };
  // Tables [256 / width, n]; those of the second choice, too.
  enum Table { kA, kB, kSecondA, kSecondB };

  float prepare(const float* x, const float* importance);
  void take(Choice& to, int v, int vector, bool second, float scale) const;
  Choice choose(int sub, float scale) const;
  float best_scale(int sub, Choice& choice) const;
  float choose_all(float d, const int* odd, Choice* choices) const;
  void write(const Choice* choices, const int* odd, GridBlock& block) const;
  uint8_t signs_of(int group, const Choice& choice, int first) const;

  const float* table(Table which, int vector) const {
    return tables_[which].data() + static_cast<size_t>(vector) * static_cast<size_t>(type_.n);
  }
  float* table(Table which, int vector) {
    return tables_[which].data() + static_cast<size_t>(vector) * static_cast<size_t>(type_.n);
  }

  GridType type_;
  std::vector<float> levels_;  // [width, n]
  std::vector<float> tables_[4];
  float x_[256], w_[256];  // magnitudes, where signs are written
  uint8_t signs_[32];      // as x has them
};

}  // namespace tandem::quants
