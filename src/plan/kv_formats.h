// How a session stores the rows of each layer's cache: types, and whether heads are rotated first. From the options.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "exec/placement.h"
#include "model/architecture.h"
#include "plan/options.h"

namespace tandem {

// Parses "0-3=q8_0/q4_0,4-=q4_0": layers N, N-M or N- (to the last), and the type of keys and values, or of keys and of
// values. Throws Error(usage).
std::vector<KvTypeRange> parse_kv_type_layers(std::string_view text);
// The same as text.
std::string kv_type_layers_text(std::span<const KvTypeRange> ranges);

// Sets types and rotation of all layers of `kv`, whose shapes are set. Throws Error(usage) for layers that the model does not
// have or that two ranges name, types that do not divide the head size, and a rotation that no layer can have.
void set_kv_formats(KvConfig& kv, const ContextOptions& options);

// Parses "R,K": components and positions, both at least 1. Throws Error(usage).
SparseReads parse_sparse_kv(std::string_view text);
// The same as text.
std::string sparse_kv_text(const SparseReads& reads);
// Whether the host attends to an indexed cache.
bool reads_sparsely(const KvConfig& kv, const Placement& placement);
// Throws Error(usage) if sparse reads are asked for and this placement has none.
void check_sparse_kv(const ContextOptions& options, const KvConfig& kv, const Placement& placement);

// "keys of 28 layers, values of 28 layers"; empty if nothing is rotated.
std::string kv_rotation_text(const KvConfig& kv);

}  // namespace tandem
