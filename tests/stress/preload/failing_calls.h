/* The preloaded library that makes one call of a program fail, and what the program reports of its calls.

   LD_PRELOAD=libfailing_calls.so TANDEM_FAILING_CALL=memory:17 tandem run ...    the 17th allocation fails
   LD_PRELOAD=libfailing_calls.so TANDEM_FAILING_CALL=memory:17+ tandem run ...   so does every later one
   LD_PRELOAD=libfailing_calls.so TANDEM_FAILING_CALL=uring:1+,read:17 ...         calls of two kinds

   TANDEM_FAILING_CALLS_REPORT names a file of sizeof(CallReport) bytes that counts the calls of each kind. It is mapped at
   the first call, before the program can confine itself, and shared with the processes that the program forks. For a
   debugger: break at failing_call_reached. */
#ifndef TANDEM_TESTS_STRESS_FAILING_CALLS_H
#define TANDEM_TESTS_STRESS_FAILING_CALLS_H

#include <stdint.h>

enum CallKind {
  kMemory,   /* malloc, calloc, realloc, aligned_alloc, posix_memalign; so operator new too: ENOMEM */
  kMap,      /* mmap: ENOMEM */
  kOpen,     /* open, openat, fopen: EMFILE */
  kRead,     /* read, pread, readv: EIO */
  kWrite,    /* write, pwrite, writev: ENOSPC */
  kSync,     /* fsync, fdatasync: EIO */
  kName,     /* rename, link, linkat: ENOSPC */
  kTruncate, /* ftruncate: EIO */
  kThread,   /* pthread_create: EAGAIN */
  kUring,    /* io_uring_queue_init, io_uring_submit, io_uring_submit_and_wait: ENOMEM */
  kCallKinds
};

#define TANDEM_CALL_KIND_NAMES \
  { "memory", "map", "open", "read", "write", "sync", "name", "truncate", "thread", "uring" }

struct CallReport {
  uint64_t n_calls[kCallKinds];
  uint64_t n_failed;
  uint64_t preads_fail; /* not 0: every pread fails; a test may change it while the program runs */
};

#endif
