#include "engine/session_file.h"

#include <algorithm>

#include "base/error.h"
#include "base/setting.h"
#include "engine/model_identity.h"
#include "gguf/quants.h"
#include "gguf/writer.h"

namespace tandem {
namespace {

constexpr uint32_t kVersion = 2, kRotatedVersion = 3;
constexpr const char* kRotationKey = "session.kv_rotation";
constexpr const char* kExactKey = "session.n_exact";
// Of a text that was cut back into a quantized group: fewer tokens are cached than it has (kv/open_groups.h).
constexpr const char* kCachedKey = "session.n_cached";
constexpr KvHalf kHalves[] = {KvHalf::keys, KvHalf::values};

std::string tensor_name(size_t layer, KvHalf half) {
  return "cache." + std::to_string(layer) + (half == KvHalf::keys ? ".k" : ".v");
}

DType dtype_of(const KvConfig& config, size_t layer, KvHalf half) {
  const KvLayer shape = kv_layer_shape(config, layer);
  return kv_row_dtype(half == KvHalf::keys ? shape.k_dtype : shape.v_dtype);
}

int64_t head_dim_of(const KvConfig& config, size_t layer, KvHalf half) {
  const KvLayer shape = kv_layer_shape(config, layer);
  return half == KvHalf::keys ? shape.head_dim_k : shape.head_dim_v;
}

int64_t n_head_of(const KvConfig& config, size_t layer, KvHalf half) {
  const KvLayer shape = kv_layer_shape(config, layer);
  return half == KvHalf::keys ? shape.n_head_k() : shape.n_head_kv;
}

size_t row_set_bytes(const KvConfig& config, size_t layer, KvHalf half) {
  return row_bytes(dtype_of(config, layer, half), head_dim_of(config, layer, half)) *
         static_cast<size_t>(n_head_of(config, layer, half));
}

// Of keys and values of each layer; empty if nothing is rotated.
std::vector<int32_t> rotation_widths(const KvConfig& config) {
  std::vector<int32_t> widths;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const KvRotation r = config.format(layer).rotation;
    widths.push_back(static_cast<int32_t>(r.keys));
    widths.push_back(static_cast<int32_t>(r.values));
  }
  if (std::ranges::count(widths, 0) == std::ssize(widths)) widths.clear();
  return widths;
}

int64_t width_of(const KvRotation& rotation, KvHalf half) {
  return half == KvHalf::keys ? rotation.keys : rotation.values;
}

std::string rotation(const Session& session) {
  return rotation(session.model().architecture(), session.n_ctx());
}

std::string model_name(const Model& model) {
  return std::string(model.file().metadata().get_or<std::string>("general.name", model.description()));
}

}  // namespace

void save_session(const Session& session, const std::string& path, std::string_view transcript, Saved what) {
  const KvConfig& config = session.kv_config();
  std::span<const int32_t> tokens = session.tokens();
  if (what == Saved::transcript) tokens = {};
  GgufWriter writer(path);
  Metadata& m = writer.metadata();
  m.set("general.architecture", Value(kSessionArchitecture));
  const std::vector<int32_t> widths = rotation_widths(config);
  m.set("session.version", Value(widths.empty() ? kVersion : kRotatedVersion));
  m.set("session.fingerprint", Value(fingerprint(session.model())));
  m.set("session.model", Value(model_name(session.model())));
  m.set("session.rotation", Value(rotation(session)));
  if (session.n_deferred() > 0)
    m.set("session.n_deferred", Value(static_cast<uint32_t>(session.n_deferred())));
  if (!widths.empty()) m.set(kRotationKey, Value(widths));
  m.set("session.tokens", Value(tokens));
  if (!tokens.empty() && session.n_exact() < session.n_cached())
    m.set(kExactKey, Value(static_cast<uint32_t>(session.n_exact())));
  if (!tokens.empty() && !config.is_recurrent() && session.n_cached() < session.n_past())
    m.set(kCachedKey, Value(static_cast<uint32_t>(session.n_cached())));
  const std::vector<int64_t> states = tokens.empty() ? std::vector<int64_t>() : session.state_positions();
  if (config.is_recurrent())
    m.set("session.states", Value(std::vector<int32_t>(states.begin(), states.end())));
  const bool has_cache = !tokens.empty() && session.n_cached() > 0;
  const auto n_rows = [&](size_t layer) {
    return config.layers[layer].is_recurrent() ? static_cast<int64_t>(states.size()) : session.n_cached();
  };
  m.set("session.transcript", Value(std::string(transcript)));
  const auto for_each_tensor = [&](auto&& fn) {
    for (size_t layer = 0; layer < config.layers.size() && has_cache; ++layer) {
      for (const KvHalf half : kHalves) {
        if (head_dim_of(config, layer, half) > 0) fn(layer, half);
      }
    }
  };
  for_each_tensor([&](size_t layer, KvHalf half) {
    const int64_t dims[] = {head_dim_of(config, layer, half), n_head_of(config, layer, half), n_rows(layer)};
    writer.add_tensor(tensor_name(layer, half), dtype_of(config, layer, half), dims);
  });
  std::vector<std::byte> rows;
  for_each_tensor([&](size_t layer, KvHalf half) {
    rows.resize(row_set_bytes(config, layer, half) * static_cast<size_t>(n_rows(layer)));
    session.read_kv(layer, half, rows.data());
    writer.write_tensor(tensor_name(layer, half), rows);
  });
  writer.finish();
}

SessionFile::SessionFile(const std::string& path, const Session& session) : file_(path) {
  check_kind(session);
  const Metadata& m = file_.metadata();
  tokens_ = m.get_vector<int32_t>("session.tokens");
  transcript_ = m.get<std::string_view>("session.transcript");
  if (m.has(kExactKey)) n_exact_ = m.get<uint32_t>(kExactKey);
  const int64_t n_vocab = session.model().hparams().n_vocab;
  for (const int32_t id : tokens_) {
    if (id < 0 || id >= n_vocab) {
      throw_error(ErrorCode::bad_file, "{}: token id {} is not in the vocabulary of {}", path, id, n_vocab);
    }
  }
  read_states(session);
  read_rotations(session);
  check_tensors(session);
}

void SessionFile::read_rotations(const Session& session) {
  const KvConfig& config = session.kv_config();
  rotations_.resize(config.layers.size());
  if (file_.metadata().get<uint32_t>("session.version") == kVersion) return;
  const std::vector<int32_t> widths = file_.metadata().get_vector<int32_t>(kRotationKey);
  if (widths.size() != 2 * rotations_.size()) {
    throw_error(ErrorCode::bad_file, "{}: {}: found {} widths, needed {}", file_.path(), kRotationKey,
                widths.size(), 2 * rotations_.size());
  }
  for (size_t i = 0; i < widths.size(); ++i) {
    const size_t layer = i / 2;
    const KvHalf half = i % 2 == 0 ? KvHalf::keys : KvHalf::values;
    const KvShape& shape = config.layers[layer];
    const int64_t head_dim = half == KvHalf::keys ? shape.head_dim_k : shape.head_dim_v;
    const int64_t needed = shape.has_heads() ? hadamard_width(head_dim) : 0;
    if (widths[i] != 0 && widths[i] != needed) {
      throw_error(ErrorCode::bad_file, "{}: {}: found a width of {} in layer {}, needed 0 or {}",
                  file_.path(), kRotationKey, widths[i], layer, needed);
    }
    (half == KvHalf::keys ? rotations_[layer].keys : rotations_[layer].values) = widths[i];
  }
}

// Which positions the saved states have; ascending, each of some of the tokens.
void SessionFile::read_states(const Session& session) {
  n_cached_ = static_cast<int64_t>(tokens_.size());
  if (!session.kv_config().is_recurrent()) {
    const Metadata& m = file_.metadata();
    if (!m.has(kCachedKey)) return;
    const int64_t n = m.get<uint32_t>(kCachedKey);
    if (n >= n_cached_) {
      throw_error(ErrorCode::bad_file, "{}: {}: found {}, needed less than the {} tokens of the text",
                  file_.path(), kCachedKey, n, n_cached_);
    }
    n_cached_ = n;
    return;
  }
  n_cached_ = 0;
  for (const int64_t position : file_.metadata().get_vector<int32_t>("session.states")) {
    if (position <= n_cached_ || position > static_cast<int64_t>(tokens_.size())) {
      throw_error(ErrorCode::bad_file,
                  "{}: session.states: found {} after {}, needed ascending numbers up to {}", file_.path(),
                  position, n_cached_, tokens_.size());
    }
    states_.push_back(position);
    n_cached_ = position;
  }
}

void SessionFile::check_kind(const Session& session) const {
  const char* path = file_.path().c_str();
  const Metadata& m = file_.metadata();
  const auto kind = m.get_or<std::string>("general.architecture", "");
  if (kind != kSessionArchitecture) {
    throw_error(ErrorCode::bad_file, "{}: not a saved session: found a GGUF file of architecture '{}'", path,
                printable(kind));
  }
  const auto version = m.get<uint32_t>("session.version");
  if (version != kVersion && version != kRotatedVersion) {
    throw_error(ErrorCode::bad_file,
                "{}: a saved session of version {}, and this program reads versions {} and {}", path, version,
                kVersion, kRotatedVersion);
  }
  if (m.get<std::string>("session.fingerprint") != fingerprint(session.model())) {
    throw_error(
        ErrorCode::bad_file,
        "{}: saved with another model, '{}'; this one is '{}' (a file that differs in metadata or weights "
        "is another model)",
        path, printable(m.get<std::string>("session.model")), printable(model_name(session.model())));
  }
  if (m.get<std::string>("session.rotation") != rotation(session)) {
    throw_error(
        ErrorCode::usage,
        "{}: saved with positions encoded in another way: needed the same {}, {} and {} options, and a "
        "context ({}) on the same side of the one that the model was first trained with",
        path, setting_text(Setting::rope), setting_text(Setting::yarn), setting_text(Setting::self_extend),
        setting_text(Setting::n_ctx));
  }
  const int64_t n_deferred = m.get_or<uint32_t>("session.n_deferred", 0);
  if (n_deferred != session.n_deferred()) {
    throw_error(ErrorCode::usage, "{}: saved with {}, and this session has {}: its cache would be another",
                path, setting_text(Setting::n_deferred, n_deferred),
                setting_text(Setting::n_deferred, session.n_deferred()));
  }
}

void SessionFile::check_tensors(const Session& session) const {
  const KvConfig& config = session.kv_config();
  if (n_cached_ == 0) return;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const bool is_recurrent = config.layers[layer].is_recurrent();
    for (const KvHalf half : kHalves) {
      if (head_dim_of(config, layer, half) == 0) continue;
      const TensorInfo& t = file_.tensor(tensor_name(layer, half));
      file_.require_readable(t);
      const int64_t dims[] = {head_dim_of(config, layer, half), n_head_of(config, layer, half),
                              is_recurrent ? static_cast<int64_t>(states_.size()) : n_cached_, 1};
      if (std::equal(dims, dims + 4, t.dims)) continue;
      throw_error(ErrorCode::bad_file, "{}: tensor {}: found the shape {}, needed [{}, {}, {}]", file_.path(),
                  t.name, t.shape_text(), dims[0], dims[1], dims[2]);
    }
  }
}

void SessionFile::restore(Session& session, size_t n_tokens) const {
  TANDEM_CHECK(n_tokens <= tokens_.size());
  if (static_cast<int64_t>(n_tokens) > session.n_ctx()) {
    throw_error(ErrorCode::usage, "{}: holds {} tokens, and the context only {} ({} or more makes room)",
                file_.path(), n_tokens, session.n_ctx(),
                setting_text(Setting::n_ctx, static_cast<int64_t>(n_tokens)));
  }
  const KvConfig& config = session.kv_config();
  std::vector<std::byte> converted;
  std::vector<float> floats;
  const auto rows = [&](size_t layer, KvHalf half, int64_t n) -> std::span<const std::byte> {
    const TensorInfo& t = file_.tensor(tensor_name(layer, half));
    const DType wanted = dtype_of(config, layer, half);
    const int64_t head_dim = t.dims[0];
    const size_t n_rows = static_cast<size_t>(n * t.dims[1]);
    const size_t from_bytes = row_bytes(t.dtype, head_dim), to_bytes = row_bytes(wanted, head_dim);
    const int64_t from_width = width_of(rotations_[layer], half);
    const int64_t to_width = width_of(config.format(layer).rotation, half);
    if (t.dtype == wanted && from_width == to_width) return {t.data, n_rows * from_bytes};
    converted.resize(n_rows * to_bytes);
    floats.resize(head_dim);
    for (size_t row = 0; row < n_rows; ++row) {
      dequantize_row(t.dtype, t.data + row * from_bytes, floats.data(), head_dim);
      // All widths of a head are the same, and the matrix is its own inverse.
      if (from_width != to_width) hadamard(floats.data(), std::max(from_width, to_width), head_dim);
      quantize_row(wanted, floats.data(), converted.data() + row * to_bytes, head_dim);
    }
    return converted;
  };
  session.restore(std::span(tokens_).first(n_tokens), {n_cached_, states_, rows, n_exact_});
}

}  // namespace tandem
