// How fast a device is: measured where it is (plan/rates.h), taken from a table where it is imagined.
#pragma once

#include <algorithm>

namespace tandem {

// What a device can do.
struct DeviceRates {
  double read_bytes_per_s = 0;  // of its own memory
  double ops_per_s = 0;         // a multiplication and an addition are two
  double bus_bytes_per_s = 0;   // from and to host memory; unused on the host
  double stage_s = 0;           // to start a segment
  double node_s = 0;            // to start an op of a segment
  double disk_bytes_per_s = 0;  // of the host: how fast it reads the model's file; 0: not known
  // Of host memory: what all who read it get together; on the host what its cores get, on others what the CPU
  // and the bus get when both read. 0: not known.
  double memory_bytes_per_s = 0;
  // Of the host: in products its cores read and compute in turn, so that the times add up. Elsewhere the
  // longer one counts.
  bool in_turn = false;
  double float_ops_per_s = 0;  // of products with weights that are floats of 16 or 32 bits; 0: as ops_per_s
  // Attention has a pace of its own, and another where a sequence has one token only. 0: as ops_per_s.
  double attention_ops_per_s = 0;
  double single_attention_ops_per_s = 0;

  double memory() const { return std::max(memory_bytes_per_s, read_bytes_per_s); }
};

}  // namespace tandem
