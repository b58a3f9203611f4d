// Uploads resident weights. The file's bytes go through two halves of a pinned buffer in turn, so that
// reading one overlaps copying the other; a kernel that reads the pinned memory over the bus splits the
// blocks into planes. Cost: the file's bytes once over the bus; the relayout hides behind it. (Other weights:
// fetcher.h.)
#include <algorithm>
#include <cstring>

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/relayout.h"
#include "ggml-cuda/stream.h"

namespace tandem::cuda {
namespace {

constexpr int kFileBlocks = 64;  // file blocks of a thread block: a multiple of 16 bytes of any dtype
constexpr int kThreads = 256;

// from: n_file_blocks file blocks in pinned or device memory, the first being number `first` of the weight. A
// thread block copies 64 of them to shared memory in 16-byte loads, then a thread takes a block of 32 columns
// apart.
template <DType T>
__global__ void __launch_bounds__(kThreads)
    relayout_kernel(const std::byte* from, int64_t first, int64_t n_file_blocks, int64_t file_blocks_per_mat,
                    std::byte* to, PlaneOffsets offsets) {
  using Block = FileBlock<T>;
  constexpr int kVectors = kFileBlocks * sizeof(Block) / 16;
  static_assert(kFileBlocks * sizeof(Block) % 16 == 0);
  __shared__ uint4 staged[kVectors];

  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kFileBlocks;
  const int64_t count = min(static_cast<int64_t>(kFileBlocks), n_file_blocks - begin);
  const uint4* source = reinterpret_cast<const uint4*>(from + begin * sizeof(Block));
  const int n_vectors = static_cast<int>((count * sizeof(Block) + 15) / 16);
  for (int i = threadIdx.x; i < n_vectors; i += kThreads)
    staged[i] = __ldcv(source + i);  // the host rewrites it
  __syncthreads();

  for (int i = threadIdx.x; i < count * kPerFileBlock<T>; i += kThreads) {
    const int64_t file_block = first + begin + i / kPerFileBlock<T>;
    const int64_t mat = file_block / file_blocks_per_mat;
    const Planes planes = planes_at(to + mat * offsets.mat_bytes, offsets);
    relayout_block<T>(reinterpret_cast<const Block*>(staged)[i / kPerFileBlock<T>],
                      file_block - mat * file_blocks_per_mat, i % kPerFileBlock<T>, planes);
  }
}

class EventPair {
 public:
  EventPair() {
    for (SharedEvent& event : events_) event = make_event();
  }
  void record(int i, cudaStream_t stream) { TANDEM_CUDA(cudaEventRecord(events_[i].get(), stream)); }
  void wait(int i) { TANDEM_CUDA(cudaEventSynchronize(events_[i].get())); }  // at once when never recorded

 private:
  SharedEvent events_[2];
};

// Calls fn(half of the staging buffer, offset, bytes) for chunks of whole units, when the half is free; fn
// enqueues its readers. The caller waits for the stream before it uses the buffer again.
template <class Fn>
void in_chunks(size_t n_bytes, size_t unit_bytes, std::span<std::byte> staging, cudaStream_t stream, Fn fn) {
  const size_t half_bytes = staging.size() / 2 / 256 * 256;
  const size_t chunk_bytes = half_bytes / unit_bytes * unit_bytes;
  TANDEM_CHECK(chunk_bytes > 0);
  EventPair events;
  int half = 0;
  for (size_t at = 0; at < n_bytes; at += chunk_bytes, half ^= 1) {
    std::byte* buffer = staging.data() + static_cast<size_t>(half) * half_bytes;
    events.wait(half);
    fn(buffer, at, std::min(chunk_bytes, n_bytes - at));
    events.record(half, stream);
  }
}

}  // namespace

size_t chunk_unit(const Weight& weight) {
  return has_planes(weight.dtype) ? dtype_info(weight.dtype).block_bytes : 1;
}

void lay_out(std::byte* to, const Weight& weight, const std::byte* from, size_t at, size_t count,
             cudaStream_t stream) {
  if (!has_planes(weight.dtype)) {
    TANDEM_CUDA(cudaMemcpyAsync(to + at, from, count, cudaMemcpyDefault, stream));
    return;
  }
  const DTypeInfo& info = dtype_info(weight.dtype);
  const PlaneOffsets offsets = plane_offsets(weight.dtype, weight.n_rows, weight.n_cols);
  const int64_t file_blocks_per_mat = weight.n_rows * (weight.n_cols / info.block_elements);
  const auto first = static_cast<int64_t>(at / info.block_bytes),
             n = static_cast<int64_t>(count / info.block_bytes);
  const auto grid = static_cast<unsigned>((n + kFileBlocks - 1) / kFileBlocks);
  for_format(weight.dtype, [&]<DType T>() {
    relayout_kernel<T><<<grid, kThreads, 0, stream>>>(from, first, n, file_blocks_per_mat, to, offsets);
  });
  check_launch("relayout_kernel");
}

void load_relayout_kernels() {
  for (const DTypeInfo& info : all_dtypes()) {
    for_format(info.dtype, [&]<DType T>() {
      cudaFuncAttributes attributes{};
      TANDEM_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(relayout_kernel<T>)));
    });
  }
}

void upload_weight(std::byte* to, const Weight& weight, std::span<std::byte> staging, cudaStream_t stream) {
  in_chunks(weight.n_bytes(), chunk_unit(weight), staging, stream,
            [&](std::byte* buffer, size_t at, size_t count) {
              std::memcpy(buffer, weight.data + at, count);
              lay_out(to, weight, buffer, at, count, stream);
            });
}

}  // namespace tandem::cuda
