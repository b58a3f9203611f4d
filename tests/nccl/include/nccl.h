// What the program uses of NCCL's interface, for builds of tests without NCCL. Names and values are those of NCCL 2.
#pragma once

#include <cstddef>

using cudaStream_t = struct FakeStream*;
using ncclComm_t = struct ncclComm*;

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclFloat = 7 };
enum ncclRedOp_t { ncclSum = 0 };

extern "C" {
ncclResult_t ncclCommInitAll(ncclComm_t* communicators, int n, const int* devices);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error);
ncclResult_t ncclCommAbort(ncclComm_t communicator);
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
const char* ncclGetErrorString(ncclResult_t result);
}
