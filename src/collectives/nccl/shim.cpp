#include "collectives/nccl/shim.h"

#include <nccl.h>

namespace tandem {
namespace {

ncclComm_t get(void* communicator) {
  return static_cast<ncclComm_t>(communicator);
}

int create(void** communicators, int n, const int* devices) {
  ncclComm_t list[64] = {};
  if (n > 64) return ncclInvalidArgument;
  const ncclResult_t result = ncclCommInitAll(list, n, devices);
  for (int i = 0; i < n; ++i) communicators[i] = list[i];
  return result;
}

int all_reduce(void* const* communicators, int n, const float* const* in, float* const* out, size_t n_floats,
               void* const* streams) {
  ncclResult_t result = ncclGroupStart();
  for (int i = 0; i < n && result == ncclSuccess; ++i) {
    result = ncclAllReduce(in[i], out[i], n_floats, ncclFloat, ncclSum, get(communicators[i]),
                           static_cast<cudaStream_t>(streams[i]));
  }
  const ncclResult_t end = ncclGroupEnd();
  return result == ncclSuccess ? end : result;
}

int async_error(void* const* communicators, int n) {
  for (int i = 0; i < n; ++i) {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(get(communicators[i]), &found);
    if (result != ncclSuccess) return result;
    if (found != ncclSuccess && found != ncclInProgress) return found;
  }
  return ncclSuccess;
}

void abort_all(void* const* communicators, int n) {
  for (int i = 0; i < n; ++i) ncclCommAbort(get(communicators[i]));
}

void destroy(void* const* communicators, int n) {
  for (int i = 0; i < n; ++i) ncclCommDestroy(get(communicators[i]));
}

const char* error_text(int error) {
  return ncclGetErrorString(static_cast<ncclResult_t>(error));
}

constexpr NcclFunctions kFunctions{
    kNcclFunctionsVersion, create, all_reduce, async_error, abort_all, destroy, error_text};

}  // namespace
}  // namespace tandem

extern "C" __attribute__((visibility("default"))) const tandem::NcclFunctions* tandem_nccl_functions() {
  return &tandem::kFunctions;
}
