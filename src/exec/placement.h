// Placement: which device holds each layer's weights, its experts and its cache. The one structure that flags
// and planners produce and that the executor reads. Devices are numbered by their place in the executor's
// list; 0 is the host (a device whose info says host_memory).
//
// Weights that the host holds can be streamed: the nodes that read them run on another device, and the
// layer's weights are brought there for every step, while the layers before it compute. Steps of several
// tokens and of one token may differ in that. Or both at once: the rows of a layer's matrices are divided
// between that device and the host (see divide_rows.h).
//
// Where host memory does not hold them all, the matrices of some layers stay on disk: they are read into
// slots in host memory for every step, and used or streamed from there.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "exec/weight_slices.h"

namespace tandem {

struct LayerPlacement {
  int weights = 0;  // linear, glu, norms, rope and routing run here
  int experts = 0;  // moe_ffn runs here
  int kv = 0;       // the cache lies here; kv_write and attention run beside it
  int kv_prefetched =
      0;  // a cache on the host is brought to this device for every step and used there; 0: it is not
  // A cache on the host has its newest positions on this device, where they are written; each attends over
  // its part. 0: all is on the host.
  int kv_recent = 0;
  // The device that what is on the host by `weights` or `experts` is streamed to; 0: it is computed on the
  // host.
  int streamed_prefill = 0;  // in steps of several tokens of a sequence
  int streamed_decode = 0;   // in steps of one token of each
  bool from_disk = false;    // what is on the host by `weights` or `experts` is read from disk for every step

  // The share of the rows of streamed matrices that the device computes, the host computing the others
  // meanwhile; 1: all. What is on disk is not divided.
  double rows_prefill = 1, rows_decode = 1;

  int streamed(const ShapeClass& shape) const {
    return shape.max_tokens > shape.max_sequences ? streamed_prefill : streamed_decode;
  }
  double rows(const ShapeClass& shape) const {
    if (from_disk) return 1;
    return shape.max_tokens > shape.max_sequences ? rows_prefill : rows_decode;
  }
};

struct Placement {
  int input = 0;                       // the embedding table; nodes before the first layer
  std::vector<LayerPlacement> layers;  // one for each layer of the model
  int output = 0;                      // the output norm and head
  int64_t kv_split = 0;                // positions that a recent part (kv_recent) holds at the least
  int64_t n_recent_blocks = 0;         // cache blocks that it has room for
  int n_stream_slots = 2;              // layers that a device has room for to stream into
  int n_disk_slots = 2;                // layers that host memory has room for to read into
  std::unordered_map<const Weight*, int>
      overrides;  // nodes of these weights run there, whatever the rest says
  // What divided weights are cut into; copies of a placement share it.
  std::shared_ptr<WeightSlices> slices = std::make_shared<WeightSlices>();

  // Everything on the host.
  static Placement host_only(int n_layer) {
    Placement placement;
    placement.layers.resize(static_cast<size_t>(n_layer));
    return placement;
  }

  // Whether some layer's cache is in two parts.
  bool splits_caches() const;

  // The device that runs a node.
  int device_of(const Graph& graph, const Node& node) const;
  // Whether a node reads this weight of its own layer from a slot that it was streamed into. Vectors are not
  // worth the trouble: they stay on the device.
  bool streams(const Graph& graph, const Node& node, const Weight& weight) const;
  // Whether the weight is one that is read from disk, where a node streams it.
  bool on_disk(const Weight& weight) const;

 private:
  const int* override_of(const Graph& graph, const Node& node) const;
  int home_of(const Graph& graph, const Node& node) const;  // before streaming
};

}  // namespace tandem
