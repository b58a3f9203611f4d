// The functions of NCCL that the program uses, as a table in a library of its own (libtandem_nccl.so). That library alone is
// linked to NCCL, so that the program starts on machines without it; nccl_library() opens it. Only plain C types cross the
// boundary.
//
// Each function returns 0 or NCCL's error code, which error_text() explains. One thread calls.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

struct NcclFunctions {
  int32_t version;  // kNcclFunctionsVersion, of the other side

  // A communicator of each of n devices, CUDA's numbers of them.
  int (*create)(void** communicators, int n, const int* devices);
  // Sums n_floats of `in` of all devices into `out` of all, each in the order of its stream. `in` may be `out`.
  int (*all_reduce)(void* const* communicators, int n, const float* const* in, float* const* out,
                    size_t n_floats, void* const* streams);
  // What has failed in the sums so far, which may then never end; 0 while nothing has.
  int (*async_error)(void* const* communicators, int n);
  // Ends what they do, also if it hangs, and frees them.
  void (*abort)(void* const* communicators, int n);
  void (*destroy)(void* const* communicators, int n);

  const char* (*error_text)(int error);
};

inline constexpr int32_t kNcclFunctionsVersion = 2;
inline constexpr const char* kNcclFunctionsName = "tandem_nccl_functions";
// Type of the one function that the library has.
using GetNcclFunctions = const NcclFunctions* (*)();

}  // namespace tandem
