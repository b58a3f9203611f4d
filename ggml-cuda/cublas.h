// cuBLAS, loaded by name on first use: the program runs without the library, and only work that needs it
// fails. Calls go through the table that cublas_api() returns.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

namespace tandem::cuda {

struct CublasApi {
  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  decltype(&cublasSetWorkspace_v2) set_workspace;
  decltype(&cublasGetStatusString) status_string;
  // Spelled out: the headers overload these names for C++.
  cublasStatus_t (*gemm_ex)(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType a_type, int lda,
                            const void* b, cudaDataType b_type, int ldb, const void* beta, void* c,
                            cudaDataType c_type, int ldc, cublasComputeType_t, cublasGemmAlgo_t);
  cublasStatus_t (*gemm_strided_batched_ex)(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b,
                                            int m, int n, int k, const void* alpha, const void* a,
                                            cudaDataType a_type, int lda, long long stride_a, const void* b,
                                            cudaDataType b_type, int ldb, long long stride_b,
                                            const void* beta, void* c, cudaDataType c_type, int ldc,
                                            long long stride_c, int n_batch, cublasComputeType_t,
                                            cublasGemmAlgo_t);
};

// Any thread. Throws Error(io), naming the library, if it cannot be loaded.
const CublasApi& cublas_api();
// Whether it can be; warns once if not.
bool has_cublas();

// Workspace that an op using cuBLAS adds to its scratch_bytes (256-byte aligned) and passes to set_workspace
// before its products, so that cuBLAS allocates nothing.
inline constexpr size_t kCublasWorkspaceBytes = size_t{32} << 20;

// A device's cuBLAS handle on its stream, created on first use.
class CublasHandle {
 public:
  explicit CublasHandle(cudaStream_t stream) : stream_(stream) {}
  ~CublasHandle();
  CublasHandle(const CublasHandle&) = delete;
  CublasHandle& operator=(const CublasHandle&) = delete;

  cublasHandle_t get();  // throws Error(io | out_of_memory)

 private:
  cudaStream_t stream_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace tandem::cuda
