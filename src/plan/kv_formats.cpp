#include "plan/kv_formats.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/setting.h"
#include "base/text.h"
#include "plan/kv_memory.h"

namespace tandem {
namespace {

std::string range_text(const KvTypeRange& r) {
  std::string text = std::to_string(r.first);
  if (!r.last) {
    text += "-";
  } else if (*r.last != r.first) {
    text += "-" + std::to_string(*r.last);
  }
  return text + "=" + lower_case(dtype_name(r.k)) + (r.v == r.k ? "" : "/" + lower_case(dtype_name(r.v)));
}

[[noreturn]] void refuse_range(std::string_view range, std::string_view found) {
  throw_error(ErrorCode::usage,
              "{}: found {}, needed LAYERS=TYPE or LAYERS=KEYS/VALUES, with LAYERS as 3, 0-3 or 4-",
              setting_text(Setting::kv_type_layers, printable(range, 60)), printable(found, 60));
}

int64_t parse_layer(std::string_view range, std::string_view text) {
  int32_t layer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || layer < 0)
    refuse_range(range, format("layer '{}'", text));
  return layer;
}

DType parse_type(std::string_view range, std::string_view text) {
  if (const auto dtype = find_cache_dtype(text)) return *dtype;
  throw_error(ErrorCode::usage, "{}: '{}' is none of {}",
              setting_text(Setting::kv_type_layers, printable(range, 60)), printable(text, 60),
              joined(cache_dtype_names(), ", "));
}

KvTypeRange parse_range(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) refuse_range(text, "no '='");
  const std::string_view layers = text.substr(0, equals), types = text.substr(equals + 1);
  const size_t dash = layers.find('-'), slash = types.find('/');
  KvTypeRange range;
  range.first = parse_layer(text, layers.substr(0, dash));
  if (dash == std::string_view::npos) {
    range.last = range.first;
  } else if (dash + 1 < layers.size()) {
    range.last = parse_layer(text, layers.substr(dash + 1));
    if (*range.last < range.first) refuse_range(text, "a range that ends before it begins");
  }
  range.k = parse_type(text, types.substr(0, slash));
  range.v = slash == std::string_view::npos ? range.k : parse_type(text, types.substr(slash + 1));
  return range;
}

void set_types(std::vector<KvFormat>& formats, std::span<const KvTypeRange> ranges) {
  std::vector<const KvTypeRange*> range_of(formats.size());
  const auto n_layer = static_cast<int64_t>(formats.size());
  for (const KvTypeRange& range : ranges) {
    const int64_t last = range.last.value_or(n_layer - 1);
    if (range.first >= n_layer || last >= n_layer) {
      throw_error(ErrorCode::usage, "{}: there is no layer {}, the model has layers 0 to {}",
                  setting_text(Setting::kv_type_layers, range_text(range)), std::max(range.first, last),
                  n_layer - 1);
    }
    for (int64_t i = range.first; i <= last; ++i) {
      const KvTypeRange*& set_by = range_of[static_cast<size_t>(i)];
      if (set_by) {
        throw_error(ErrorCode::usage, "{}: layer {} is in two ranges",
                    setting_text(Setting::kv_type_layers, range_text(*set_by) + "," + range_text(range)), i);
      }
      set_by = &range;
      formats[static_cast<size_t>(i)].k = range.k;
      formats[static_cast<size_t>(i)].v = range.v;
    }
  }
}

bool has_four_bits(DType dtype) {
  return dtype == DType::Q4_0 || dtype == DType::Q4_1 || dtype == DType::IQ4_NL;
}

KvRotation rotation_of(const KvShape& shape, const KvFormat& format, Toggle rotate) {
  if (rotate == Toggle::off || !shape.has_heads()) return {};
  const auto width = [&](DType dtype, int64_t head_dim) {
    return rotate == Toggle::on || has_four_bits(dtype) ? hadamard_width(head_dim) : 0;
  };
  return {width(format.k, shape.head_dim_k), width(format.v, shape.head_dim_v)};
}

[[noreturn]] void refuse_rotation(const KvConfig& kv) {
  const auto found = std::ranges::find_if(kv.layers, &KvShape::has_heads);
  const std::string why = found == kv.layers.end()
                              ? "this model caches no heads, but states or the rows of latent attention"
                              : format("{} does not divide the heads of this model, of {} and {} columns",
                                       kMinHadamard, found->head_dim_k, found->head_dim_v);
  throw_error(ErrorCode::usage, "{}: {}", setting_text(Setting::kv_rotate, "on"), why);
}

bool can_be_indexed(const KvShape& shape) {
  return shape.has_heads() && shape.window == 0 && shape.n_key_sets == 1;
}

// Marks the layers that sparse reads have an index for.
void set_indices(KvConfig& kv, const SparseReads& reads) {
  if (!reads.on()) return;
  bool any = false;
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    kv.formats[i].indexed = can_be_indexed(kv.layers[i]);
    any |= kv.formats[i].indexed;
    if (kv.formats[i].indexed && reads.n_components > kv.layers[i].head_dim_k) {
      throw_error(ErrorCode::usage, "{}: the keys of this model have {} components",
                  setting_text(Setting::sparse_kv, sparse_kv_text(reads)), kv.layers[i].head_dim_k);
    }
  }
  if (any) return;
  throw_error(
      ErrorCode::usage,
      "{}: no layer of this model attends to keys of all positions; it has windows, states or the rows "
      "of latent attention, which are read as they are",
      setting_text(Setting::sparse_kv, sparse_kv_text(reads)));
}

int64_t parse_count(std::string_view whole, std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || n < 1 || n > INT32_MAX) {
    throw_error(ErrorCode::usage, "{}: needed R,K: components of keys and positions, both at least 1",
                setting_text(Setting::sparse_kv, printable(whole, 60)));
  }
  return n;
}

}  // namespace

SparseReads parse_sparse_kv(std::string_view text) {
  const size_t comma = std::min(text.find(','), text.size());
  const std::string_view after = comma < text.size() ? text.substr(comma + 1) : std::string_view();
  return {parse_count(text, text.substr(0, comma)), parse_count(text, after)};
}

std::string sparse_kv_text(const SparseReads& reads) {
  return format("{},{}", reads.n_components, reads.n_positions);
}

bool reads_sparsely(const KvConfig& kv, const Placement& placement) {
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    const KvHome& home = placement.layers[i].kv;
    const bool is_prefetched = std::holds_alternative<PrefetchedKv>(home);
    if (kv.format(i).indexed && holder(home).is_host() && !is_prefetched) return true;
  }
  return false;
}

void check_sparse_kv(const ContextOptions& options, const KvConfig& kv, const Placement& placement) {
  if (!options.sparse_kv.on() || reads_sparsely(kv, placement)) return;
  throw_error(ErrorCode::usage,
              "{}: the CPU reads sparsely, and here only GPUs read the cache; {} or {} has the CPU read it",
              setting_text(Setting::sparse_kv, sparse_kv_text(options.sparse_kv)),
              setting_text(Setting::kv_on_host), setting_text(Setting::kv_split, "N"));
}

std::vector<KvTypeRange> parse_kv_type_layers(std::string_view text) {
  std::vector<KvTypeRange> ranges;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    ranges.push_back(parse_range(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return ranges;
}

std::string kv_type_layers_text(std::span<const KvTypeRange> ranges) {
  std::vector<std::string> texts;
  for (const KvTypeRange& range : ranges) texts.push_back(range_text(range));
  return joined(texts, ",");
}

void set_kv_formats(KvConfig& kv, const ContextOptions& options) {
  kv.k_dtype = options.k_dtype;
  kv.v_dtype = options.v_dtype;
  kv.formats.assign(kv.layers.size(), {kv.k_dtype, kv.v_dtype, {}});
  set_types(kv.formats, options.kv_type_layers);
  bool rotates = false;
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    KvFormat& format = kv.formats[i];
    format.rotation = rotation_of(kv.layers[i], format, options.kv_rotate);
    rotates |= format.rotation != KvRotation{};
  }
  if (options.kv_rotate == Toggle::on && !rotates) refuse_rotation(kv);
  set_indices(kv, options.sparse_kv);
  check_kv_config(kv);
  kv.n_open_blocks =
      kv.is_grouped() ? open_block_count(options.n_sequences, options.n_ubatch, kv.block_size) : 0;
  if (kv.is_grouped() && options.sparse_kv.on()) {
    throw_error(ErrorCode::usage,
                "{}: KIVI4 and KIVI2 caches are read as a whole; use other types for keys and values",
                setting_text(Setting::sparse_kv, sparse_kv_text(options.sparse_kv)));
  }
  set_kv_memory(kv, options);
}

void check_host_kv(const KvConfig& kv, const OffloadOptions& options) {
  if (!kv.stays_on_host()) return;
  const auto refuse = [&](const SettingValue& setting) {
    throw_error(ErrorCode::usage,
                "{}: with {} a part of the cache is on disk, and the CPU alone reads it there",
                setting_text(setting.setting, setting.value), setting_text(Setting::kv_memory));
  };
  if (options.kv_prefetched) refuse({Setting::kv_prefetched});
  if (options.kv_split) refuse({Setting::kv_split, std::to_string(*options.kv_split)});
  if (options.n_kv_layers_gpu.value_or(0) > 0)
    refuse({Setting::n_kv_layers_gpu, std::to_string(*options.n_kv_layers_gpu)});
  if (options.split_mode == SplitMode::tensor) refuse({Setting::split_mode, "tensor"});
}

std::string kv_rotation_text(const KvConfig& kv) {
  int64_t n_keys = 0, n_values = 0;
  bool others = false;
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    others |= kv.layers[i].is_recurrent() || (kv.layers[i].has_rows() && !kv.layers[i].has_heads());
    n_keys += kv.format(i).rotation.keys > 0;
    n_values += kv.format(i).rotation.values > 0;
  }
  std::vector<std::string> parts;
  const auto add = [&](const char* what, int64_t n) {
    if (n > 0) parts.push_back(format("{} of {} layer{}", what, n, n == 1 ? "" : "s"));
  };
  add("keys", n_keys);
  add("values", n_values);
  if (parts.empty()) return "";
  return joined(parts, ", ") + (others ? "; not recurrent states and rows of latent attention" : "");
}

}  // namespace tandem
