// Which GPU the software GPU stands for, and what it has been asked to do. For tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

struct GpuModel {
  int compute_capability = 90;
  int n_multiprocessors = 6;
  size_t memory_bytes = size_t{4} << 30;
  bool has_cublas = true;

  // Maximum bytes of shared memory of a block.
  size_t max_shared() const;
};

// TANDEM_EMULATED_GPU=CAPABILITY,MULTIPROCESSORS ("120,132") chooses the one at the start.
const GpuModel& gpu();
void become(const GpuModel& model);  // while nothing is allocated

// Since the program's start.
struct Counts {
  int64_t launches = 0;        // of kernels, one by one
  int64_t graph_launches = 0;  // of graphs
  int64_t graph_kernels = 0;   // launched by them
  int64_t kernels_loaded = 0;  // different ones
  int64_t copies_from_host = 0;
  int64_t copies_to_host = 0;
  int64_t bytes_to_host = 0;
  int64_t cublas_products = 0;
  int64_t bytes_from_registered = 0;  // copied from host memory that was page-locked where it was
};
Counts counts();
Counts operator-(const Counts& a, const Counts& b);
// Of host memory page-locked where it is, at the moment.
size_t registered_bytes();

}  // namespace emulator
