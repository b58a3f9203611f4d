// DeviceRates: the speed of a device, measured if it is present (plan/rates.h), from a table if it is
// imagined.
#pragma once

#include <algorithm>

namespace tandem {

struct DeviceRates {
  double read_bytes_per_s = 0;  // from its own memory
  double ops_per_s = 0;         // a multiply-add counts as two
  double bus_bytes_per_s = 0;   // to and from host memory; unused on the host
  double stage_s = 0;           // overhead of a segment
  double node_s = 0;            // overhead of an op in a segment
  double disk_bytes_per_s = 0;  // host only: reading the model file; 0: unknown
  // Bandwidth of host memory, shared by all its readers: on the host, of all cores together; on another
  // device, of the CPU and the bus when both read. 0: unknown.
  double memory_bytes_per_s = 0;
  // Host only: in matrix products its cores read and compute in turn, so the two times add up. If false,
  // the longer one counts.
  bool in_turn = false;
  double float_ops_per_s = 0;  // products with 16- or 32-bit float weights; 0: as ops_per_s
  // Attention, and attention with one token per sequence. 0: as ops_per_s.
  double attention_ops_per_s = 0;
  double single_attention_ops_per_s = 0;
  // GPUs that add without the host (NCCL): a sum over n of them takes peer_s, and for each byte of a summand
  // 2 (n - 1) / n / peer_bytes_per_s. 0: sums go over host memory.
  double peer_bytes_per_s = 0, peer_s = 0;
  // From host memory that is page-locked (Device::pin). 0: as bus_bytes_per_s.
  double pinned_bytes_per_s = 0;

  static constexpr double kUsualPeerS = 12e-6;

  double fetch_bytes_per_s(bool from_pinned) const {
    return from_pinned && pinned_bytes_per_s > 0 ? pinned_bytes_per_s : bus_bytes_per_s;
  }
  double memory() const { return std::max(memory_bytes_per_s, read_bytes_per_s); }
};

}  // namespace tandem
