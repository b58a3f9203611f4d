// Llama 1, 2 and 3.x, Mistral, TinyLlama and their kin: RMS norm, rotated pairs, grouped-query attention, SiLU-gated
// feed-forward; and Mixtral, whose feed-forward is a mixture of experts. (arXiv:2302.13971, 2307.09288, 2407.21783,
// 2401.04088)
#include "base/error.h"
#include "model/architecture.h"

#include <cmath>

namespace tandem {
namespace {

struct LlamaLayer {
  const Weight* attn_norm;                   // [n_embd]
  const Weight *wq, *wk, *wv;                // [n_head * head_dim_k | n_head_kv * head_dim_k | _v, n_embd]
  const Weight *bq, *bk, *bv;                // optional
  const Weight *wo, *bo;                     // [n_embd, n_head * head_dim_v]; bias optional
  const Weight* ffn_norm;                    // [n_embd]
  const Weight* router;                      // [n_expert, n_embd]; none: dense
  const Weight *gate, *up;                   // [n_ff, n_embd]; of each expert where there is a router
  const Weight* down;                        // [n_embd, n_ff]
  const Weight *b_gate, *b_up, *b_down;      // optional
};

class Llama final : public Architecture {
 public:
  explicit Llama(const ModelSource& source) {
    const HparamReader reader(source.file.metadata(), "llama");
    hparams_ = reader.transformer("attention.layer_norm_rms_epsilon");
    hparams_.n_expert = reader.integer_or("expert_count", 0, 0, 65536);
    if (hparams_.n_expert > 0) hparams_.n_expert_used = reader.integer("expert_used_count", 1, hparams_.n_expert);
    rope_ = reader.rope(hparams_, RopeStyle::pair, source.rope);
    bind(source.weights);
  }

  KvShape kv_shape(int) const override { return {hparams_.n_head_kv, hparams_.head_dim_k, hparams_.head_dim_v}; }

  Graph build(const ShapeClass& shape) const override {
    const Hparams& h = hparams_;
    const NormOp rms{NormKind::rms, h.norm_eps, h.n_embd};
    const AttentionOp attention{h.n_head, h.n_head_kv, h.head_dim_k, h.head_dim_v,
                                1.0f / std::sqrt(static_cast<float>(h.head_dim_k))};
    GraphBuilder g(shape);
    TensorId x = g.embed(token_embd_);  // [n, n_embd]
    for (int i = 0; i < h.n_layer; ++i) {
      const LlamaLayer& l = layers_[static_cast<size_t>(i)];
      g.set_layer(i);
      const TensorId a = g.norm(x, rms, l.attn_norm);
      const TensorId q = g.linear(a, l.wq, l.bq);  // [n, n_head * head_dim]
      const TensorId k = g.linear(a, l.wk, l.bk);  // [n, n_head_kv * head_dim]
      const TensorId v = g.linear(a, l.wv, l.bv);
      const TensorId q_rotated = g.rope(q, rotation(h.n_head), rope_factors_);
      g.kv_write(g.rope(k, rotation(h.n_head_kv), rope_factors_), v);
      TensorId y = g.attention(q_rotated, attention);
      // After the last attention only the rows whose logits are wanted go on.
      if (i + 1 == h.n_layer) {
        y = g.gather_outputs(y);
        x = g.gather_outputs(x);
      }
      x = g.linear(y, l.wo, l.bo, x);
      const TensorId f = g.norm(x, rms, l.ffn_norm);
      if (l.router) {
        const TensorId route = g.moe_route(g.linear(f, l.router), MoeRouteOp{h.n_expert, h.n_expert_used});
        x = g.moe_ffn(f, route, MoeFfnOp{h.n_expert, h.n_expert_used}, l.gate, l.up, l.down, x);
      } else {
        const TensorId gated = g.glu(f, GluOp{Activation::silu}, l.gate, l.up, l.b_gate, l.b_up);  // [n, n_ff]
        x = g.linear(gated, l.down, l.b_down, x);
      }
    }
    g.set_layer(static_cast<int>(h.n_layer));
    x = g.norm(x, rms, output_norm_);
    return g.finish(g.linear(x, output_));
  }

 private:
  RopeOp rotation(int64_t n_head) const {
    RopeOp op = rope_;
    op.n_head = n_head;
    return op;
  }

  void bind(WeightBinder& w) {
    Hparams& h = hparams_;
    const int64_t n_q = h.n_head * h.head_dim_k, n_k = h.n_head_kv * h.head_dim_k, n_v = h.n_head_kv * h.head_dim_v;
    w.set_layer(-1);
    token_embd_ = w.matrix("token_embd.weight", WeightBinder::kAnySize, h.n_embd);
    h.n_vocab = token_embd_->n_rows;
    output_norm_ = w.vector("output_norm.weight", h.n_embd);
    output_ = w.optional_matrix("output.weight", h.n_vocab, h.n_embd);
    if (output_ == nullptr) output_ = token_embd_;  // tied
    rope_factors_ = w.optional_vector("rope_freqs.weight", rope_.n_rot / 2);
    for (int i = 0; i < h.n_layer; ++i) {
      w.set_layer(i);
      LlamaLayer& l = layers_.emplace_back(LlamaLayer{});
      l.attn_norm = w.vector("attn_norm.weight", h.n_embd);
      l.wq = w.matrix("attn_q.weight", n_q, h.n_embd);
      l.wk = w.matrix("attn_k.weight", n_k, h.n_embd);
      l.wv = w.matrix("attn_v.weight", n_v, h.n_embd);
      l.bq = w.optional_vector("attn_q.bias", n_q);
      l.bk = w.optional_vector("attn_k.bias", n_k);
      l.bv = w.optional_vector("attn_v.bias", n_v);
      l.wo = w.matrix("attn_output.weight", h.n_embd, h.n_head * h.head_dim_v);
      l.bo = w.optional_vector("attn_output.bias", h.n_embd);
      l.ffn_norm = w.vector("ffn_norm.weight", h.n_embd);
      if (h.n_expert > 0) {
        l.router = w.matrix("ffn_gate_inp.weight", h.n_expert, h.n_embd);
        l.gate = w.experts("ffn_gate_exps.weight", h.n_expert, h.n_ff, h.n_embd);
        l.up = w.experts("ffn_up_exps.weight", h.n_expert, h.n_ff, h.n_embd);
        l.down = w.experts("ffn_down_exps.weight", h.n_expert, h.n_embd, h.n_ff);
        continue;
      }
      l.gate = w.matrix("ffn_gate.weight", h.n_ff, h.n_embd);
      l.up = w.matrix("ffn_up.weight", h.n_ff, h.n_embd);
      l.down = w.matrix("ffn_down.weight", h.n_embd, h.n_ff);
      l.b_gate = w.optional_vector("ffn_gate.bias", h.n_ff);
      l.b_up = w.optional_vector("ffn_up.bias", h.n_ff);
      l.b_down = w.optional_vector("ffn_down.bias", h.n_embd);
    }
    w.set_layer(-1);
  }

  RopeOp rope_;
  const Weight* token_embd_ = nullptr;    // [n_vocab, n_embd]
  const Weight* output_norm_ = nullptr;   // [n_embd]
  const Weight* output_ = nullptr;        // [n_vocab, n_embd]
  const Weight* rope_factors_ = nullptr;  // [n_rot / 2], optional
  std::vector<LlamaLayer> layers_;
};

}  // namespace

std::unique_ptr<Architecture> load_llama(const ModelSource& source) { return std::make_unique<Llama>(source); }

}  // namespace tandem
