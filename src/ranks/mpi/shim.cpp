#include "ranks/mpi/shim.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tandem {
namespace {

static_assert(sizeof(MPI_Request) <= sizeof(MpiHandle) && sizeof(MPI_Message) <= sizeof(MpiHandle));

// The program's messages, apart from those of a library that also uses MPI.
MPI_Comm g_ranks = MPI_COMM_NULL;

template <class T>
T get(const MpiHandle* handle) {
  T value;
  memcpy(&value, handle->bytes, sizeof value);
  return value;
}
template <class T>
void put(MpiHandle* handle, const T& value) {
  memcpy(handle->bytes, &value, sizeof value);
}

// Ranks of one machine would read each other's memory, which the sandbox forbids, as many containers do: they use shared
// memory. Of Open MPI, MPICH and UCX, which either may use; what the user has set stays.
void forbid_reading_other_processes() {
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);  // Open MPI 3 and 4
  setenv("OMPI_MCA_smsc", "^cma", 0);                             // Open MPI 5
  setenv("MPIR_CVAR_CH4_CMA_ENABLE", "0", 0);
  setenv("UCX_TLS", "^cma", 0);
}

int init(int* rank, int* size) {
  forbid_reading_other_processes();
  int provided = MPI_THREAD_SINGLE;
  if (const int e = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided)) return e;
  if (provided < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
  if (const int e = MPI_Comm_dup(MPI_COMM_WORLD, &g_ranks)) return e;
  MPI_Comm_set_errhandler(g_ranks, MPI_ERRORS_RETURN);
  MPI_Comm_rank(g_ranks, rank);
  return MPI_Comm_size(g_ranks, size);
}

void abort_all(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  _Exit(exit_code);
}

int start_send(const void* bytes, int n, int to, int tag, MpiHandle* handle) {
  MPI_Request request;
  const int e = MPI_Isend(bytes, n, MPI_BYTE, to, tag, g_ranks, &request);
  put(handle, request);
  return e;
}

int find_message(int* found, int* from, int* tag, int* n, MpiHandle* handle) {
  MPI_Message message;
  MPI_Status status;
  const int e = MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, g_ranks, found, &message, &status);
  if (e != MPI_SUCCESS || !*found) return e;
  *from = status.MPI_SOURCE;
  *tag = status.MPI_TAG;
  put(handle, message);
  return MPI_Get_count(&status, MPI_BYTE, n);
}

int start_receive(void* bytes, int n, MpiHandle* from, MpiHandle* handle) {
  auto message = get<MPI_Message>(from);
  MPI_Request request;
  const int e = MPI_Imrecv(bytes, n, MPI_BYTE, &message, &request);
  put(handle, request);
  return e;
}

int start_all_reduce(float* values, int n, MpiHandle* handle) {
  MPI_Request request;
  const int e = MPI_Iallreduce(MPI_IN_PLACE, values, n, MPI_FLOAT, MPI_SUM, g_ranks, &request);
  put(handle, request);
  return e;
}

int start_all_gather(const void* mine, int n, void* all, const int* counts, const int* offsets,
                     MpiHandle* handle) {
  MPI_Request request;
  const int e = MPI_Iallgatherv(mine, n, MPI_BYTE, all, counts, offsets, MPI_BYTE, g_ranks, &request);
  put(handle, request);
  return e;
}

int start_broadcast(void* bytes, int n, int root, MpiHandle* handle) {
  MPI_Request request;
  const int e = MPI_Ibcast(bytes, n, MPI_BYTE, root, g_ranks, &request);
  put(handle, request);
  return e;
}

int start_barrier(MpiHandle* handle) {
  MPI_Request request;
  const int e = MPI_Ibarrier(g_ranks, &request);
  put(handle, request);
  return e;
}

int test(MpiHandle* handle, int* done) {
  auto request = get<MPI_Request>(handle);
  const int e = MPI_Test(&request, done, MPI_STATUS_IGNORE);
  put(handle, request);
  return e;
}

void copy_text(const char* from, char* text, size_t room) {
  if (room == 0) return;
  strncpy(text, from, room - 1);
  text[room - 1] = 0;
}

void error_text(int error, char* text, size_t room) {
  char all[MPI_MAX_ERROR_STRING + 1] = {};
  int n = 0;
  if (MPI_Error_string(error, all, &n) != MPI_SUCCESS) strcpy(all, "unknown error");
  copy_text(all, text, room);
}

void library_version(char* text, size_t room) {
  char all[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int n = 0;
  MPI_Get_library_version(all, &n);
  std::replace(all, all + n, '\t', ' ');  // MPICH's
  copy_text(all, text, room);
}

constexpr MpiFunctions kFunctions = {
    kMpiFunctionsVersion, init,          MPI_Finalize,     abort_all,        start_send,
    find_message,         start_receive, start_all_reduce, start_all_gather, start_broadcast,
    start_barrier,        test,          error_text,       library_version,
};

}  // namespace
}  // namespace tandem

extern "C" [[gnu::visibility("default")]] const tandem::MpiFunctions* tandem_mpi_functions() {
  return &tandem::kFunctions;
}
