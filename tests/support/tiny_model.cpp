#include "support/tiny_model.h"

#include <cmath>
#include <random>

#include "base/error.h"
#include "gguf/writer.h"
#include "support/quantized.h"

namespace tandem::test {
namespace {

void add_vocabulary(Metadata& metadata, int64_t n_vocab) {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{2, 3, 3};
  std::vector<float> scores{0, 0, 0};
  for (int b = 0; b < 256; ++b) {
    tokens.push_back(format("<0x{:02X}>", static_cast<unsigned>(b)));
    types.push_back(6);
    scores.push_back(0);
  }
  for (int i = 0; static_cast<int64_t>(tokens.size()) < n_vocab; ++i) {
    tokens.push_back(std::string(i % 2 ? "\xe2\x96\x81" : "") + static_cast<char>('a' + i / 2 % 26) +
                     (i < 52 ? "" : std::to_string(i)));
    types.push_back(1);
    scores.push_back(static_cast<float>(-i));
  }
  metadata.set("tokenizer.ggml.model", Value("llama"));
  metadata.set("tokenizer.ggml.tokens", Value(tokens));
  metadata.set("tokenizer.ggml.token_type", Value(types));
  metadata.set("tokenizer.ggml.scores", Value(scores));
  metadata.set("tokenizer.ggml.bos_token_id", Value(uint32_t{1}));
  metadata.set("tokenizer.ggml.eos_token_id", Value(uint32_t{2}));
  metadata.set("tokenizer.ggml.unknown_token_id", Value(uint32_t{0}));
}

void add_layer(TinyModel& model, const TinyShape& s, int64_t layer, uint64_t& seed) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const int64_t head_dim = s.n_embd / s.n_head;
  const auto matrix = [&](const char* name, std::vector<int64_t> dims) {
    model.add(prefix + name, s.dtype, std::move(dims), seed++);
  };
  model.add(prefix + "attn_norm.weight", DType::F32, {s.n_embd}, seed++);
  matrix("attn_q.weight", {s.n_embd, s.n_embd});
  matrix("attn_k.weight", {s.n_embd, s.n_head_kv * head_dim});
  matrix("attn_v.weight", {s.n_embd, s.n_head_kv * head_dim});
  matrix("attn_output.weight", {s.n_embd, s.n_embd});
  model.add(prefix + "ffn_norm.weight", DType::F32, {s.n_embd}, seed++);
  if (s.n_expert > 0) {
    model.add(prefix + "ffn_gate_inp.weight", DType::F32, {s.n_embd, s.n_expert}, seed++);
    matrix("ffn_gate_exps.weight", {s.n_embd, s.n_ff, s.n_expert});
    matrix("ffn_up_exps.weight", {s.n_embd, s.n_ff, s.n_expert});
    matrix("ffn_down_exps.weight", {s.n_ff, s.n_embd, s.n_expert});
  } else {
    matrix("ffn_gate.weight", {s.n_embd, s.n_ff});
    matrix("ffn_up.weight", {s.n_embd, s.n_ff});
    matrix("ffn_down.weight", {s.n_ff, s.n_embd});
  }
}

}  // namespace

void TinyModel::add(const std::string& name, DType dtype, std::vector<int64_t> dims, uint64_t seed) {
  int64_t n_rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) n_rows *= dims[i];
  const int64_t n_cols = dims[0];
  const bool norm = dims.size() == 1;
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(norm ? 1.0f : 0.0f,
                                         norm ? 0.1f : 1.0f / std::sqrt(static_cast<float>(n_cols)));
  std::vector<float> values(static_cast<size_t>(n_rows * n_cols));
  for (float& x : values) x = normal(rng);
  tensors[name] = {dtype, std::move(dims), quantized(dtype, values)};
}

void TinyModel::write(const std::string& path) const {
  GgufWriter writer(path);
  for (const Metadata::Entry& entry : metadata.entries()) writer.metadata().set(entry.key, entry.value);
  for (const auto& [name, t] : tensors) writer.add_tensor(name, t.dtype, t.dims);
  for (const auto& [name, t] : tensors) writer.write_tensor(name, t.data);
  writer.finish();
}

TinyModel read_model(const GgufFile& file) {
  TinyModel model;
  for (const Metadata::Entry& entry : file.metadata().entries()) model.metadata.set(entry.key, entry.value);
  for (const TensorInfo& t : file.tensors()) {
    std::vector<int64_t> dims(t.dims, t.dims + t.n_dims);
    model.tensors[std::string(t.name)] = {t.dtype, std::move(dims), {t.data, t.data + t.n_bytes}};
  }
  return model;
}

TinyModel tiny_llama(const TinyShape& s, uint64_t seed) {
  TinyModel model;
  Metadata& m = model.metadata;
  const auto set = [&](const char* key, int64_t value) { m.set(key, Value(static_cast<uint32_t>(value))); };
  m.set("general.architecture", Value("llama"));
  m.set("general.name", Value("tiny"));
  set("llama.context_length", 128);
  set("llama.embedding_length", s.n_embd);
  set("llama.block_count", s.n_layer);
  set("llama.feed_forward_length", s.n_ff);
  set("llama.attention.head_count", s.n_head);
  set("llama.attention.head_count_kv", s.n_head_kv);
  m.set("llama.attention.layer_norm_rms_epsilon", Value(1e-5f));
  m.set("llama.rope.freq_base", Value(10000.0f));
  if (s.n_expert > 0) {
    set("llama.expert_count", s.n_expert);
    set("llama.expert_used_count", s.n_expert_used);
  }
  add_vocabulary(m, s.n_vocab);
  seed *= 1000;
  model.add("token_embd.weight", s.dtype, {s.n_embd, s.n_vocab}, seed++);
  model.add("output_norm.weight", DType::F32, {s.n_embd}, seed++);
  if (!s.tied) model.add("output.weight", s.dtype, {s.n_embd, s.n_vocab}, seed++);
  for (int64_t i = 0; i < s.n_layer; ++i) add_layer(model, s, i, seed);
  return model;
}

void add_chat_template(TinyModel& model) {
  model.metadata.set("tokenizer.chat_template",
                     Value("{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
                           "{% if add_generation_prompt %}<s>assistant:{% endif %}"));
}

}  // namespace tandem::test
