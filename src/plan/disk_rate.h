// How fast a model's files can be read from their disk: the roof over decoding with layers on disk.
#pragma once

#include "base/disk_reader.h"
#include "plan/rates_cache.h"

namespace tandem {

// Bytes per second, as layers are read; 0 where the files are too small to tell. Takes a fraction of a
// second. Throws Error(io).
double measure_disk_rate(const std::vector<DiskFile>& files);

// The same, measured only if the cache does not know the disk that the first file lies on.
double disk_rate_of(const std::vector<DiskFile>& files, const RatesCache& cache);

}  // namespace tandem
