/* Needs to work before main() and inside the allocator's callers: it allocates nothing, and reaches the kernel and the
   allocator directly where it can. */
#define _GNU_SOURCE
#include "failing_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

extern char** environ;
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
struct io_uring;

#define EXPORT __attribute__((visibility("default")))

static const int kErrors[kCallKinds] = {ENOMEM, ENOMEM, EMFILE, EIO,    ENOSPC,
                                        EIO,    ENOSPC, EIO,    EAGAIN, ENOMEM};

static struct CallReport own_report; /* if there is no file */
static struct CallReport* report;    /* null before the first call */
static uint64_t failing_at[kCallKinds]; /* from 1; 0: none */
static int failing_later[kCallKinds];   /* and every later call */

static void map_report(const char* path) {
  const long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  const long at = syscall(SYS_mmap, NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
  if (at > 0 || at < -4095) report = (struct CallReport*)at;
  syscall(SYS_close, fd);
}

/* "memory:17", "memory:17+" or "uring:1+,read:17" */
static void read_plan(const char* text) {
  static const char* const names[] = TANDEM_CALL_KIND_NAMES;
  for (const char* colon; (colon = strchr(text, ':')) != NULL;) {
    const char* end = colon + 1;
    uint64_t n_th = 0;
    for (; *end >= '0' && *end <= '9'; ++end) n_th = 10 * n_th + (uint64_t)(*end - '0');
    for (int kind = 0; kind < kCallKinds; ++kind) {
      const size_t n = strlen(names[kind]);
      if (n != (size_t)(colon - text) || memcmp(names[kind], text, n) != 0) continue;
      failing_at[kind] = n_th;
      failing_later[kind] = *end == '+';
    }
    text = end + strcspn(end, ",");
    text += *text == ',';
  }
}

static void begin(void) {
  report = &own_report;
  const char* plan = getenv("TANDEM_FAILING_CALL");
  const char* path = getenv("TANDEM_FAILING_CALLS_REPORT");
  if (path) map_report(path);
  if (plan) read_plan(plan);
}

EXPORT __attribute__((noinline)) void failing_call_reached(void) {
  __asm__ volatile("");
}

/* A program with CUDA allocates for its runtime before main(), which registers kernels there and does not check its
   memory. These allocations are counted and spared. */
#ifdef SPARES_BEFORE_MAIN
static int main_began;
static int (*real_main)(int, char**, char**);
static int begin_main(int n, char** arguments, char** variables) {
  main_began = 1;
  return real_main(n, arguments, variables);
}
#else
static const int main_began = 1;
#endif

/* Counts the call; whether it must fail. */
static int fails(int kind) {
  if (!report) {
    if (!environ) return 0; /* the C library has not begun yet */
    begin();
  }
  const uint64_t n = __atomic_add_fetch(&report->n_calls[kind], 1, __ATOMIC_RELAXED);
  if (kind == kMemory && !main_began) return 0;
  if (!failing_at[kind] || n < failing_at[kind] || (n > failing_at[kind] && !failing_later[kind])) return 0;
  __atomic_add_fetch(&report->n_failed, 1, __ATOMIC_RELAXED);
  failing_call_reached();
  errno = kErrors[kind];
  return 1;
}

EXPORT void* malloc(size_t n) {
  return fails(kMemory) ? NULL : __libc_malloc(n);
}
EXPORT void* calloc(size_t n, size_t size) {
  return fails(kMemory) ? NULL : __libc_calloc(n, size);
}
EXPORT void* realloc(void* old, size_t n) {
  return n > 0 && fails(kMemory) ? NULL : __libc_realloc(old, n);
}
EXPORT void* aligned_alloc(size_t alignment, size_t n) {
  return fails(kMemory) ? NULL : __libc_memalign(alignment, n);
}
EXPORT void* memalign(size_t alignment, size_t n) {
  return fails(kMemory) ? NULL : __libc_memalign(alignment, n);
}
EXPORT int posix_memalign(void** out, size_t alignment, size_t n) {
  if (fails(kMemory)) return ENOMEM;
  void* const p = __libc_memalign(alignment, n);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}

EXPORT void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
  if (fails(kMap)) return MAP_FAILED;
  return (void*)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}
EXPORT void* mmap64(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
  return mmap(at, n, protection, flags, fd, offset);
}

static int open_at(int folder, const char* path, int flags, va_list rest) {
  const int has_mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
  const int mode = has_mode ? va_arg(rest, int) : 0;
  return fails(kOpen) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}
#define DEFINE_OPEN(name)                                \
  EXPORT int name(const char* path, int flags, ...) {    \
    va_list rest;                                        \
    va_start(rest, flags);                               \
    const int fd = open_at(AT_FDCWD, path, flags, rest); \
    va_end(rest);                                        \
    return fd;                                           \
  }
#define DEFINE_OPENAT(name)                                       \
  EXPORT int name(int folder, const char* path, int flags, ...) { \
    va_list rest;                                                 \
    va_start(rest, flags);                                        \
    const int fd = open_at(folder, path, flags, rest);            \
    va_end(rest);                                                 \
    return fd;                                                    \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
EXPORT int __open_2(const char* path, int flags) {
  return open(path, flags);
}
EXPORT int __open64_2(const char* path, int flags) {
  return open(path, flags);
}

/* The function of the next library with this name. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#ifdef SPARES_BEFORE_MAIN
EXPORT int __libc_start_main(int (*program)(int, char**, char**), int n, char** arguments, void (*init)(void),
                             void (*fini)(void), void (*loader_fini)(void), void* stack_end) {
  real_main = program;
  return NEXT(__libc_start_main)(begin_main, n, arguments, init, fini, loader_fini, stack_end);
}
#endif

EXPORT FILE* fopen(const char* path, const char* mode) {
  return fails(kOpen) ? NULL : NEXT(fopen)(path, mode);
}
EXPORT FILE* fopen64(const char* path, const char* mode) {
  return fopen(path, mode);
}

EXPORT ssize_t read(int fd, void* to, size_t n) {
  return fails(kRead) ? -1 : syscall(SYS_read, fd, to, n);
}
EXPORT ssize_t __read_chk(int fd, void* to, size_t n, size_t room) {
  if (n > room) abort();
  return read(fd, to, n);
}
EXPORT ssize_t pread(int fd, void* to, size_t n, off_t offset) {
  if (fails(kRead)) return -1;
  if (__atomic_load_n(&report->preads_fail, __ATOMIC_RELAXED)) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_pread64, fd, to, n, offset);
}
EXPORT ssize_t pread64(int fd, void* to, size_t n, off_t offset) {
  return pread(fd, to, n, offset);
}
EXPORT ssize_t readv(int fd, const struct iovec* parts, int n) {
  return fails(kRead) ? -1 : syscall(SYS_readv, fd, parts, n);
}

EXPORT ssize_t write(int fd, const void* from, size_t n) {
  return fails(kWrite) ? -1 : syscall(SYS_write, fd, from, n);
}
EXPORT ssize_t pwrite(int fd, const void* from, size_t n, off_t offset) {
  return fails(kWrite) ? -1 : syscall(SYS_pwrite64, fd, from, n, offset);
}
EXPORT ssize_t pwrite64(int fd, const void* from, size_t n, off_t offset) {
  return pwrite(fd, from, n, offset);
}
EXPORT ssize_t writev(int fd, const struct iovec* parts, int n) {
  return fails(kWrite) ? -1 : syscall(SYS_writev, fd, parts, n);
}

EXPORT int fsync(int fd) {
  return fails(kSync) ? -1 : (int)syscall(SYS_fsync, fd);
}
EXPORT int fdatasync(int fd) {
  return fails(kSync) ? -1 : (int)syscall(SYS_fdatasync, fd);
}
EXPORT int rename(const char* from, const char* to) {
  return fails(kName) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
EXPORT int renameat(int a, const char* from, int b, const char* to) {
  return fails(kName) ? -1 : (int)syscall(SYS_renameat2, a, from, b, to, 0);
}
EXPORT int link(const char* from, const char* to) {
  return fails(kName) ? -1 : (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}
EXPORT int linkat(int a, const char* from, int b, const char* to, int flags) {
  return fails(kName) ? -1 : (int)syscall(SYS_linkat, a, from, b, to, flags);
}
EXPORT int ftruncate(int fd, off_t n) {
  return fails(kTruncate) ? -1 : (int)syscall(SYS_ftruncate, fd, n);
}
EXPORT int ftruncate64(int fd, off_t n) {
  return ftruncate(fd, n);
}

EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*entry)(void*),
                          void* argument) {
  return fails(kThread) ? EAGAIN : NEXT(pthread_create)(thread, attributes, entry, argument);
}

EXPORT int io_uring_queue_init(unsigned n, struct io_uring* ring, unsigned flags);
EXPORT int io_uring_submit(struct io_uring* ring);
EXPORT int io_uring_submit_and_wait(struct io_uring* ring, unsigned n);
int io_uring_queue_init(unsigned n, struct io_uring* ring, unsigned flags) {
  return fails(kUring) ? -ENOMEM : NEXT(io_uring_queue_init)(n, ring, flags);
}
int io_uring_submit(struct io_uring* ring) {
  return fails(kUring) ? -ENOMEM : NEXT(io_uring_submit)(ring);
}
int io_uring_submit_and_wait(struct io_uring* ring, unsigned n) {
  return fails(kUring) ? -ENOMEM : NEXT(io_uring_submit_and_wait)(ring, n);
}
