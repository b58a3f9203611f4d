#include "engine/model_identity.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"

namespace tandem {
namespace {

// FNV-1a over two lanes that start apart: enough to tell models apart that nobody forges.
class Hash {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) {
      low_ = (low_ ^ static_cast<uint64_t>(b)) * kPrime;
      high_ = (high_ ^ static_cast<uint64_t>(b)) * kPrime + 1;
    }
  }
  void add(uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  void add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    add(std::as_bytes(std::span(text)));
  }
  std::string text() const { return format("{:016x}{:016x}", high_, low_); }

 private:
  static constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t low_ = 0xcbf29ce484222325, high_ = 0x9ae16a3b2f90404f;
};

void add_value(Hash& hash, const Value& value) {
  hash.add(static_cast<uint64_t>(value.type()));
  if (value.type() == ValueType::string) {
    hash.add(value.text());
  } else if (value.is_array() && value.element_type() == ValueType::string) {
    for (const std::string_view text : value.strings()) hash.add(text);
  } else {
    hash.add(value.raw());
  }
}

}  // namespace

std::string fingerprint(const Model& model) {
  constexpr size_t kSampleBytes = 256;
  Hash hash;
  for (const Metadata::Entry& entry : model.file().metadata().entries()) {
    hash.add(entry.key);
    add_value(hash, entry.value);
  }
  for (const TensorInfo& t : model.file().tensors()) {
    hash.add(t.name);
    hash.add(static_cast<uint64_t>(t.dtype));
    for (const int64_t dim : t.dims) hash.add(static_cast<uint64_t>(dim));
    hash.add(std::span(t.data, std::min<size_t>(kSampleBytes, t.n_bytes)));
  }
  return hash.text();
}

std::string rotation(const Architecture& architecture, int64_t n_ctx) {
  ShapeClass shape;
  shape.n_ctx = n_ctx;
  const Graph graph = architecture.build(shape);
  Hash hash;
  if (const SelfExtend& o = architecture.hparams().self_extend; o.on())
    hash.add(format("self-extend {} {}", o.factor, o.neighbours));
  for (const Node& node : graph.nodes) {
    const auto* op = std::get_if<RopeOp>(&node.op);
    if (op == nullptr) continue;
    char text[256];
    snprintf(text, sizeof text, "%d %d %lld %a %a %a %a %a %a %d %lld", node.layer,
             static_cast<int>(op->style), static_cast<long long>(op->n_rot), op->freq_base, op->freq_scale,
             op->ext_factor, op->attn_factor, op->beta_fast, op->beta_slow, op->yarn_truncate,
             static_cast<long long>(op->n_ctx_orig));
    hash.add(text);
    for (const TensorId id : inputs_of(node.op)) {
      if (graph.tensor(id).weight) hash.add(graph.tensor(id).weight->name);
    }
  }
  return hash.text();
}

}  // namespace tandem
