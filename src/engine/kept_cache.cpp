#include "engine/kept_cache.h"

#include <algorithm>

#include "base/error.h"
#include "engine/model_identity.h"
#include "plan/kv_formats.h"

namespace tandem {
namespace {

constexpr int kLayoutVersion = 1;
constexpr KvHalf kBothHalves[] = {KvHalf::keys, KvHalf::values};

std::string root_text(const Runtime& runtime) {
  const Model& model = runtime.model();
  const KvConfig& config = runtime.kv_config();
  std::string text = format("{} {} {} {} {}", kLayoutVersion, fingerprint(model),
                            rotation(model.architecture(), runtime.n_ctx_sequence()), config.block_size,
                            runtime.n_deferred());
  for (const MappedFile& part : model.file().parts()) {
    const FileStamp& s = part.stamp();
    text += format("; file {} {} {}", s.n_bytes, s.modified_ns, s.changed_ns);
  }
  if (runtime.sparse_kv().on()) text += "; sparse " + sparse_kv_text(runtime.sparse_kv());
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const KvLayer shape = kv_layer_shape(config, layer);
    text += format("; layer {} {} {} {} {} {}", config.layers[layer].is_recurrent() ? 1 : 0, shape.n_head_k(),
                   dtype_name(shape.k_dtype), shape.head_dim_k, dtype_name(shape.v_dtype), shape.head_dim_v);
    const KvRotation r = config.format(layer).rotation;
    if (r != KvRotation{}) text += format(" rotated {} {}", r.keys, r.values);
  }
  return text;
}

std::string model_text(const Runtime& runtime) {
  const KvConfig& config = runtime.kv_config();
  return format("{}, keys {}, values {}", printable(runtime.model().description(), 100),
                kv_dtype_text(config, &KvFormat::k), kv_dtype_text(config, &KvFormat::v));
}

}  // namespace

KeptCache::KeptCache(BlockStore& store, Runtime& runtime)
    : store_(store),
      runtime_(runtime),
      block_size_(runtime.kv_config().block_size),
      root_(sha256(root_text(runtime))),
      model_(model_text(runtime)) {
  const KvConfig& config = runtime.kv_config();
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const bool is_recurrent = config.layers[layer].is_recurrent();
    for (const KvHalf half : kBothHalves) {
      const size_t n =
          runtime.kv_token_bytes(layer, half) * static_cast<size_t>(is_recurrent ? 1 : block_size_);
      if (n == 0) continue;
      (is_recurrent ? states_ : rows_).push_back({layer, half, n});
      (is_recurrent ? n_state_bytes_ : n_row_bytes_) += n;
    }
  }
}

// Of the whole blocks of these tokens.
std::vector<Sha256> KeptCache::names(std::span<const int32_t> tokens) const {
  std::vector<Sha256> names;
  const auto n_block = static_cast<size_t>(block_size_);
  Sha256 before = root_;
  for (size_t i = 0; (i + 1) * n_block <= tokens.size(); ++i) {
    before = sha256(std::as_bytes(std::span(before)), std::as_bytes(tokens.subspan(i * n_block, n_block)));
    names.push_back(before);
  }
  return names;
}

// How many blocks from the first on are there, with the state after the last of them.
int64_t KeptCache::n_kept(std::span<const Sha256> names) const {
  size_t n = 0;
  while (n < names.size() && (n_row_bytes_ == 0 || store_.has(names[n], BlockKind::rows))) ++n;
  while (n > 0 && n_state_bytes_ > 0 && !store_.has(names[n - 1], BlockKind::state)) --n;
  return static_cast<int64_t>(n);
}

int64_t KeptCache::loadable(const KvSequence& sequence, std::span<const int32_t> tokens) const {
  if (tokens.size() < 2 || sequence.length() >= static_cast<int64_t>(tokens.size())) return 0;
  const int64_t n = n_kept(names(tokens.first(tokens.size() - 1))) * block_size_;
  return n > sequence.length() ? n : 0;
}

void KeptCache::load(KvSequence& sequence, std::span<const int32_t> tokens) {
  if (tokens.size() < 2) return;
  const std::vector<Sha256> all = names(tokens.first(tokens.size() - 1));
  int64_t n = n_kept(all);
  if (n * block_size_ <= sequence.length()) return;
  while (sequence.length() % block_size_ != 0)
    sequence.truncate(sequence.length() / block_size_ * block_size_);
  const int64_t first = sequence.length() / block_size_;
  while (n > first && !load_blocks(sequence, all, first, n)) {}
  const int64_t now = BlockStore::now_ns();
  for (int64_t i = 0; i < n; ++i) {
    if (n_row_bytes_ > 0) store_.touch(all[i], BlockKind::rows, {now, i});
    if (n_state_bytes_ > 0) store_.touch(all[i], BlockKind::state, {now, i});
  }
}

// Loads the blocks first .. n - 1. False if one is damaged; then the sequence is as before, and n says where to stop the
// next time.
bool KeptCache::load_blocks(KvSequence& sequence, std::span<const Sha256> names, int64_t first, int64_t& n) {
  const int64_t length = sequence.length();
  if (n_state_bytes_ == 0) {  // what is loaded can stay
    for (int64_t i = first; i < n; ++i) {
      const auto bytes = store_.read(names[i], BlockKind::rows, n_row_bytes_);
      if (!bytes) {
        n = i;
        break;
      }
      runtime_.append_unwritten(sequence, block_size_);
      try {
        write_block(sequence, i, *bytes);
      } catch (...) {
        sequence.truncate(i * block_size_);
        throw;
      }
    }
    return true;
  }
  const auto state = store_.read(names[n - 1], BlockKind::state, n_state_bytes_);
  if (!state) {
    n = n_kept(names.first(n - 1));
    return false;
  }
  runtime_.append_unwritten(sequence, (n - first) * block_size_);
  try {
    write_state(sequence, *state);
    for (int64_t i = first; i < n && n_row_bytes_ > 0; ++i) {
      const auto bytes = store_.read(names[i], BlockKind::rows, n_row_bytes_);
      if (!bytes) {
        sequence.truncate(length);
        n = n_kept(names.first(i));
        return false;
      }
      write_block(sequence, i, *bytes);
    }
  } catch (...) {
    sequence.truncate(length);
    throw;
  }
  return true;
}

void KeptCache::keep(const KvSequence& sequence, std::span<const int32_t> tokens, WhenBusy when_busy) {
  if (!store_.takes_blocks()) return;
  const auto n_tokens = std::min(static_cast<int64_t>(tokens.size()), sequence.length());
  const std::vector<Sha256> all = names(tokens.first(static_cast<size_t>(n_tokens)));
  const auto n = static_cast<int64_t>(all.size());
  const int64_t now = BlockStore::now_ns();
  int64_t n_done = 0;
  const auto store_rows = [&](int64_t i) {
    return store_block(all[i], BlockKind::rows, i, now, when_busy, [&] { return block_of(sequence, i); });
  };
  if (n_row_bytes_ > 0) {
    while (n_done < n && store_rows(n_done)) ++n_done;
  } else {
    n_done = n;
  }
  for (const KvSequence::State& state : sequence.states()) {
    const int64_t i = state.position / block_size_ - 1;
    if (state.position % block_size_ != 0 || i < 0 || i >= n_done) continue;
    store_block(all[i], BlockKind::state, i, now, when_busy, [&] { return state_of(state.slot); });
  }
}

// False if it is left out.
bool KeptCache::store_block(const Sha256& name, BlockKind kind, int64_t block, int64_t time_ns,
                            WhenBusy when_busy, const std::function<std::vector<std::byte>()>& bytes) {
  const BlockStore::Use use{time_ns, block};
  if (store_.has(name, kind)) {
    store_.touch(name, kind, use);
    return true;
  }
  const size_t n_bytes = kind == BlockKind::rows ? n_row_bytes_ : n_state_bytes_;
  if (when_busy == WhenBusy::leave_out && !store_.has_room(n_bytes)) return false;
  BlockHeader header;
  header.kind = kind;
  header.name = name;
  header.root = root_;
  header.n_tokens = static_cast<uint32_t>((block + 1) * block_size_);
  header.model = model_;
  store_.write(std::move(header), bytes(), use);
  return true;
}

std::vector<std::byte> KeptCache::block_of(const KvSequence& sequence, int64_t block) const {
  std::vector<std::byte> bytes(n_row_bytes_);
  size_t at = 0;
  for (const Part& part : rows_) {
    runtime_.read_block(sequence, block, part.layer, part.half, bytes.data() + at);
    at += part.n_bytes;
  }
  return bytes;
}

std::vector<std::byte> KeptCache::state_of(int32_t slot) const {
  std::vector<std::byte> bytes(n_state_bytes_);
  size_t at = 0;
  for (const Part& part : states_) {
    runtime_.read_state(slot, part.layer, part.half, bytes.data() + at);
    at += part.n_bytes;
  }
  return bytes;
}

void KeptCache::write_block(const KvSequence& sequence, int64_t block, std::span<const std::byte> bytes) {
  size_t at = 0;
  for (const Part& part : rows_) {
    runtime_.write_block(sequence, block, part.layer, part.half, bytes.data() + at);
    at += part.n_bytes;
  }
}

void KeptCache::write_state(const KvSequence& sequence, std::span<const std::byte> bytes) {
  size_t at = 0;
  for (const Part& part : states_) {
    runtime_.write_state(sequence.states().back().slot, part.layer, part.half, bytes.data() + at);
    at += part.n_bytes;
  }
}

}  // namespace tandem
