// Phi-3, Phi-3.5 and Phi-4: Llama's decoder with one matrix for queries, keys and values and one for gate and
// up. Optional: a sliding window in every layer, rotation of only a fraction of each head, and frequency
// divisors for contexts up to the original length and beyond it. (arXiv:2404.14219, 2402.13753)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_phi3(const ModelSource& source) {
  DecoderReader r(source, "phi3", RopeStyle::half);
  const std::vector<int64_t> windows = r.windows(0, 0);
  DecoderSpec spec = r.begin();
  for (int64_t window : windows) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();  // attn_qkv
    l.attention.params.window = window;
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.fused_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
