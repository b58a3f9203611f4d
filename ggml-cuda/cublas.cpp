#include "ggml-cuda/cublas.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "base/log.h"
#include "ggml-cuda/compiled_op.h"

namespace tandem::cuda {
namespace {

std::string library_name() {
  return "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
}

template <class Fn>
void bind(void* library, const char* name, Fn& fn) {
  fn = reinterpret_cast<Fn>(dlsym(library, name));
  if (!fn) throw_error(ErrorCode::io, "{} has no {}", library_name(), name);
}

CublasApi load() {
  void* library = dlopen(library_name().c_str(), RTLD_NOW | RTLD_LOCAL);
  // The toolkit's own folder, in case the loader does not search it.
  if (!library) library = dlopen(("/usr/local/cuda/lib64/" + library_name()).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    throw_error(ErrorCode::io, "{} cannot be loaded: {}", library_name(), dlerror());
  }
  CublasApi api;
  bind(library, "cublasCreate_v2", api.create);
  bind(library, "cublasDestroy_v2", api.destroy);
  bind(library, "cublasSetStream_v2", api.set_stream);
  bind(library, "cublasSetWorkspace_v2", api.set_workspace);
  bind(library, "cublasGetStatusString", api.status_string);
  bind(library, "cublasGemmEx", api.gemm_ex);
  bind(library, "cublasGemmStridedBatchedEx", api.gemm_strided_batched_ex);
  return api;
}

}  // namespace

const CublasApi& cublas_api() {
  static const CublasApi api = load();  // tried again at the next call when it throws
  return api;
}

bool has_cublas() {
  static const bool found = [] {
    try {
      cublas_api();
      return true;
    } catch (const Error& e) {
      log_warning("CUDA: {}; prompts are slower without it, much slower with F16, BF16 and F32 weights",
                  e.what());
      return false;
    }
  }();
  return found;
}

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_error(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::out_of_memory : ErrorCode::io, "{}: {}", call,
              cublas_api().status_string(status));
}

CublasHandle::~CublasHandle() {
  if (handle_) cublas_api().destroy(handle_);
}

cublasHandle_t CublasHandle::get() {
  if (handle_) return handle_;
  TANDEM_CUBLAS(cublas_api().create(&handle_));
  TANDEM_CUBLAS(cublas_api().set_stream(handle_, stream_));
  return handle_;
}

}  // namespace tandem::cuda
