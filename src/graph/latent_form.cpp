#include "graph/latent_form.h"

namespace tandem {
namespace {

// Unpacking a matrix takes about as long as multiplying so many rows with it.
constexpr double kUnpackRows = 8;

}  // namespace

LatentOps latent_ops(const LatentAttentionParams& op, double n_tokens, double n_past) {
  double n_positions = n_past + n_tokens, n_pairs = n_tokens * (n_past + (n_tokens + 1) / 2);
  if (op.window > 0) {
    const auto window = static_cast<double>(op.window);
    n_positions = std::min(n_positions, window + n_tokens - 1);
    n_pairs = std::min(n_pairs, n_tokens * window);
  }
  const auto product = static_cast<double>(op.rank * (op.key - op.n_rot + op.value));
  const auto n_head = static_cast<double>(op.n_head);
  return {2 * n_head * (n_pairs * static_cast<double>(2 * op.rank + op.n_rot) + n_tokens * product),
          2 * n_head *
              (n_pairs * static_cast<double>(op.key + op.value) + (n_positions + kUnpackRows) * product)};
}

bool expands(const LatentAttentionParams& op, double n_tokens, double n_past) {
  if (n_tokens < 2 || op.form == LatentForm::absorbed) return false;
  const LatentOps ops = latent_ops(op, n_tokens, n_past);
  return op.form == LatentForm::expanded || ops.expanded < ops.absorbed;
}

AttentionParams absorbed_attention(const LatentAttentionParams& op) {
  AttentionParams params{op.n_head, 1, op.rank + op.n_rot, op.rank, op.scale, op.softcap, op.window};
  params.values_in_keys = true;
  return params;
}

}  // namespace tandem
