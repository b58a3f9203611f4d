// cuBLAS for the emulator: products as plain loops, on the handle's stream.
#include "ggml-cuda/cublas.h"

#include "base/fp16.h"
#include "emulated/gpu.h"
#include "ggml-cuda/compiled_op.h"

struct EmulatedCublas {
  cudaStream_t stream = nullptr;
};

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new EmulatedCublas;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t) {
  return "an error";
}

namespace tandem::cuda {
namespace {

float element(const void* matrix, cudaDataType type, int64_t i) {
  if (type == CUDA_R_16F) return fp16_to_fp32(static_cast<const fp16_t*>(matrix)[i]);
  if (type == CUDA_R_16BF) return bf16_to_fp32(static_cast<const bf16_t*>(matrix)[i]);
  return static_cast<const float*>(matrix)[i];
}

// c [m, n] = alpha op(a) [m, k] op(b) [k, n] + beta c, all column-major.
cublasStatus_t gemm_ex(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                       int k, const void* alpha, const void* a, cudaDataType a_type, int lda, const void* b,
                       cudaDataType b_type, int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                       cublasComputeType_t, cublasGemmAlgo_t) {
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  if (c_type != CUDA_R_32F) emulator::fail("cuBLAS: a result that is not F32");
  emulator::at(1, 1, 0, handle->stream).enqueue(nullptr, [=] {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += element(a, a_type, op_a == CUBLAS_OP_T ? i * lda + l : l * lda + i) *
                 element(b, b_type, op_b == CUBLAS_OP_T ? l * ldb + j : j * ldb + l);
        }
        float& to = static_cast<float*>(c)[j * ldc + i];
        to = scale * sum + (keep != 0.0f ? keep * to : 0.0f);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const CublasApi& cublas_api() {
  if (!emulator::gpu().has_cublas) throw_error(ErrorCode::io, "libcublas.so cannot be loaded");
  static const CublasApi api{
      cublasCreate_v2, cublasDestroy_v2, cublasSetStream_v2, cublasSetWorkspace_v2, cublasGetStatusString,
      gemm_ex,         nullptr};
  return api;
}

bool has_cublas() {
  return emulator::gpu().has_cublas;
}

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw_error(ErrorCode::io, "{}: an error", call);
}

CublasHandle::~CublasHandle() {
  delete handle_;
}

cublasHandle_t CublasHandle::get() {
  if (!handle_) {
    TANDEM_CUBLAS(cublas_api().create(&handle_));
    TANDEM_CUBLAS(cublas_api().set_stream(handle_, stream_));
  }
  return handle_;
}

}  // namespace tandem::cuda
