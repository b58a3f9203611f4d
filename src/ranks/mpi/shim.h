// The functions of MPI that the program uses, as a table in a library of its own (libtandem_mpi.so). That library alone is
// linked to MPI, so that the program starts on machines without it; MpiLibrary (ranks/mpi_library.h) opens it when --mpi is
// given. Only plain C types cross the boundary: the library and the program may have been built by different compilers.
//
// Each function returns 0 or MPI's error code, which error_text() explains, unless it says otherwise. A `start_` function
// begins something that test() finds complete later; what is handed to it must stay where it is until then. After init() any
// thread may call, but one at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

// Room for an MPI_Request or MPI_Message, whose size depends on the MPI.
struct MpiHandle {
  alignas(8) unsigned char bytes[16];
};

struct MpiFunctions {
  int32_t version;  // kMpiFunctionsVersion, of the other side

  // Starts MPI. MPI itself may end the program if it cannot.
  int (*init)(int* rank, int* size);
  // Waits for all ranks and ends MPI.
  int (*finalize)();
  // Ends all ranks. Does not return.
  void (*abort)(int exit_code);

  int (*start_send)(const void* bytes, int n, int to, int tag, MpiHandle* request);
  // Finds a message of any rank and tag that has arrived, and takes it for start_receive().
  int (*find_message)(int* found, int* from, int* tag, int* n, MpiHandle* message);
  int (*start_receive)(void* bytes, int n, MpiHandle* message, MpiHandle* request);
  int (*start_all_reduce)(float* values, int n, MpiHandle* request);  // sums, in place
  // counts, offsets: [size]
  int (*start_all_gather)(const void* mine, int n, void* all, const int* counts, const int* offsets,
                          MpiHandle* request);
  int (*start_broadcast)(void* bytes, int n, int root, MpiHandle* request);
  int (*start_barrier)(MpiHandle* request);
  int (*test)(MpiHandle* request, int* done);

  // Writes a text that ends with 0.
  void (*error_text)(int error, char* text, size_t room);
  void (*library_version)(char* text, size_t room);
};

inline constexpr int32_t kMpiFunctionsVersion = 1;
inline constexpr const char* kMpiFunctionsName = "tandem_mpi_functions";
// Type of the one function that the library has.
using GetMpiFunctions = const MpiFunctions* (*)();

}  // namespace tandem
