// What every program reads of the system, and what the driver of a GPU needs: the one list of both.
#pragma once

#include <vector>

#include "sandbox/landlock.h"

namespace tandem::sandbox {

// Libraries that are loaded late, locales, time zones, the kernel's reports about processors and memory.
std::vector<PathRule> system_files();

// Whether the machine has a GPU's driver: its devices are there.
bool has_gpu_driver();
// The devices, the libraries of the driver and of CUDA (also those that LD_LIBRARY_PATH and CUDA_PATH name), the cache of
// compiled kernels, and shared memory.
std::vector<PathRule> gpu_driver_files();
// Memory that ranks of one machine share, the folder of what started them, and the devices of fast networks.
std::vector<PathRule> mpi_files();
// Whether a daemon shares the GPU between processes, which programs reach through a socket (CUDA's MPS).
bool has_gpu_daemon();

}  // namespace tandem::sandbox
