// The reference: each function is its formula, summed in double precision.
#include <algorithm>
#include <cmath>

#include "cpu/row_kernels.h"
#include "gguf/quants.h"
#include "graph/hadamard.h"

namespace tandem::cpu::scalar {
namespace {

void rms_norm(const float* x, const float* w, const float* bias, float eps, float* to, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(n) + eps));
  for (int64_t i = 0; i < n; ++i) to[i] = x[i] * scale * w[i] + (bias ? bias[i] : 0.0f);
}

void layer_norm(const float* x, const float* w, const float* bias, float eps, float* to, int64_t n) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<float>((x[i] - mean) * scale) * w[i] + (bias ? bias[i] : 0.0f);
  }
}

void rotations(const double* frequency, double position, float magnitude, float* cos, float* sin, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double angle = position * frequency[i];
    cos[i] = magnitude * static_cast<float>(std::cos(angle));
    sin[i] = magnitude * static_cast<float>(std::sin(angle));
  }
}

void rope_pair(float* x, const float* cos, const float* sin, int64_t n_rot) {
  for (int64_t i = 0; i < n_rot / 2; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

void rope_half(float* x, const float* cos, const float* sin, int64_t n_rot) {
  float* y = x + n_rot / 2;
  for (int64_t i = 0; i < n_rot / 2; ++i) {
    const float a = x[i], b = y[i];
    x[i] = a * cos[i] - b * sin[i];
    y[i] = a * sin[i] + b * cos[i];
  }
}

void add(const float* a, const float* b, float factor, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = a[i] + factor * b[i];
}

void scale(const float* x, float factor, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = x[i] * factor;
}

void softcap(const float* x, float cap, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = cap * std::tanh(x[i] / cap);
}

template <class Act>
void glu_with(Act act, const float* gate, const float* up, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = act(gate[i]) * up[i];
}

float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + std::tanh(0.79788456f * x * (1.0f + 0.044715f * x * x)));
}

void glu(Activation activation, const float* gate, const float* up, float* to, int64_t n) {
  switch (activation) {
    case Activation::silu:
      return glu_with([](float x) { return x / (1.0f + std::exp(-x)); }, gate, up, to, n);
    case Activation::gelu:
      return glu_with([](float x) { return 0.5f * x * std::erfc(-x * 0.70710678f); }, gate, up, to, n);
    case Activation::gelu_tanh: return glu_with(gelu_tanh, gate, up, to, n);
    case Activation::relu2: return glu_with([](float x) { return x < 0.0f ? 0.0f : x * x; }, gate, up, to, n);
    case Activation::swiglu_oai:
      for (int64_t i = 0; i < n; ++i) {
        const float g = gate[i] > 7.0f ? 7.0f : gate[i];
        const float u = up[i] > 7.0f ? 7.0f : up[i] < -7.0f ? -7.0f : up[i];
        to[i] = g / (1.0f + std::exp(-1.702f * g)) * (u + 1.0f);
      }
  }
}

void dequantize(DType dtype, const std::byte* row, float* to, int64_t n) {
  dequantize_row(dtype, row, to, n);
}

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

float gate_factor(GateKind kind, float gate) {
  switch (kind) {
    case GateKind::sigmoid: return sigmoid(gate);
    case GateKind::silu: return gate * sigmoid(gate);
    case GateKind::gelu_tanh: return gelu_tanh(gate);
    case GateKind::product: return gate;
    case GateKind::relu: return gate < 0.0f ? 0.0f : gate;
  }
  return 0.0f;
}

void gate(GateKind kind, const float* x, const float* gates, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = x[i] * gate_factor(kind, gates[i]);
}

void causal_conv(const float* const* rows, const float* w, int64_t kernel, ConvActivation activation,
                 float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float sum = w[kernel * n + i];
    for (int64_t j = 0; j < kernel; ++j) sum += w[j * n + i] * rows[j][i];
    to[i] = activation == ConvActivation::silu ? sum * sigmoid(sum) : sum;
  }
}

// Copies a state from its old place.
template <class Tile>
void begin_state(const Tile& t, int64_t n_rows) {
  if (t.old == t.state) return;
  for (int64_t i = 0; i < n_rows; ++i)
    std::copy_n(t.old + i * t.state_stride, t.n_cols, t.state + i * t.state_stride);
}

void delta_rule(const DeltaRuleTile& t) {
  begin_state(t, t.head_dim_k);
  for (int64_t token = 0; token < t.n_tokens; ++token) {
    const float *q = t.q + token * t.head_dim_k, *k = t.k + token * t.head_dim_k;
    for (int64_t j = 0; j < t.n_cols; ++j) {
      float known = 0.0f, y = 0.0f;
      for (int64_t i = 0; i < t.head_dim_k; ++i) known += t.state[i * t.state_stride + j] * k[i];
      const float correction = (t.v[token * t.v_stride + j] - t.decay[token] * known) * t.beta[token];
      for (int64_t i = 0; i < t.head_dim_k; ++i) {
        float& s = t.state[i * t.state_stride + j];
        s = t.decay[token] * s + k[i] * correction;
        y += s * q[i];
      }
      t.y[token * t.y_stride + j] = y;
    }
  }
}

void ssm_scan(const SsmScanTile& t) {
  begin_state(t, t.n_state);
  for (int64_t token = 0; token < t.n_tokens; ++token) {
    const float *b = t.b + token * t.bc_stride, *c = t.c + token * t.bc_stride;
    for (int64_t j = 0; j < t.n_cols; ++j) {
      const float x = t.x[token * t.stride + j];
      float y = t.skip * x;
      for (int64_t i = 0; i < t.n_state; ++i) {
        float& s = t.state[i * t.state_stride + j];
        s = t.decay[token] * s + b[i] * (t.dt[token] * x);
        y += s * c[i];
      }
      t.y[token * t.y_stride + j] = y;
    }
  }
}

void lower_products(const LowerProducts& p) {
  for (int64_t t = 0; t < p.n_rows; ++t) {
    for (int64_t u = 0; u <= t; ++u) {
      float sum = 0.0f;
      for (int64_t i = 0; i < p.n; ++i) sum += p.a[t * p.stride + i] * p.b[u * p.stride + i];
      p.to[t * p.to_stride + u] = sum;
    }
  }
}

}  // namespace

const RowKernels& row_kernels() {
  static constexpr RowKernels table{rms_norm, layer_norm,     rotations,  rope_pair,  rope_half,
                                    add,      scale,          softcap,    glu,        dequantize,
                                    gate,     causal_conv,    delta_rule, delta_rule, ssm_scan,
                                    ssm_scan, lower_products, hadamard};
  return table;
}

}  // namespace tandem::cpu::scalar
