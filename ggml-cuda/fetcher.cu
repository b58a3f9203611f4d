#include "ggml-cuda/fetcher.h"

#include <algorithm>
#include <system_error>

#include "base/copy_past_cache.h"
#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/layout.h"

namespace tandem::cuda {
namespace {

constexpr size_t kSliceBytes = size_t{256} << 10;  // of a piece, for one of the copiers

// One thread copies about 10 GB/s (6 where cores share their memory with others), a bus up to 55.
int copier_count() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 8);
}

}  // namespace

Fetcher::Fetcher(int device) : device_(device), copiers_(copier_count()) {
  try {
    take_memory();
    load_relayout_kernels();
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    give_memory_back();
    throw_error(ErrorCode::out_of_memory, "cannot start a thread");
  } catch (...) {
    give_memory_back();
    throw;
  }
}

Fetcher::~Fetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  cudaStreamSynchronize(copies_);
  cudaStreamSynchronize(layouts_);
  give_memory_back();
}

void Fetcher::take_memory() {
  for (cudaStream_t* stream : {&copies_, &layouts_}) {
    TANDEM_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  TANDEM_CUDA(
      cudaHostAlloc(reinterpret_cast<void**>(&pieces_[0].pinned), kStagingBytes, cudaHostAllocDefault));
  TANDEM_CUDA(cudaMalloc(reinterpret_cast<void**>(&pieces_[0].device), kStagingBytes));
  for (size_t i = 0; i < kPieces; ++i) {
    pieces_[i] = {pieces_[0].pinned + i * kPieceBytes, pieces_[0].device + i * kPieceBytes, make_event(),
                  make_event()};
  }
}

void Fetcher::give_memory_back() {
  if (pieces_[0].device) cudaFree(pieces_[0].device);
  if (pieces_[0].pinned) cudaFreeHost(pieces_[0].pinned);
  for (cudaStream_t stream : {copies_, layouts_}) {
    if (stream) cudaStreamDestroy(stream);
  }
}

uint64_t Fetcher::fetch(std::byte* to, const Weight& weight, SharedEvent after) {
  Job job{to, {}, std::move(after)};
  job.weight.dtype = weight.dtype;
  job.weight.n_mats = weight.n_mats;
  job.weight.n_rows = weight.n_rows;
  job.weight.n_cols = weight.n_cols;
  job.weight.data = weight.data;
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(job));
  changed_.notify_all();
  return ++n_asked_;
}

void Fetcher::join(uint64_t fetched, cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  TANDEM_CHECK(fetched <= n_asked_);
  changed_.wait(lock, [&] { return n_issued_ >= fetched; });
  rethrow();
  SharedEvent event;  // of the fetch; those of earlier ones are nobody's any more
  while (!complete_.empty() && complete_.front().number <= fetched) {
    if (event) spare_.push_back(std::move(event));
    event = std::move(complete_.front().event);
    complete_.pop_front();
  }
  if (!event) return;  // the stream has waited for it, or for a later one, or nothing came of it
  TANDEM_CUDA(cudaStreamWaitEvent(stream, event.get(), 0));
  spare_.push_back(std::move(event));
}

void Fetcher::check() {
  const std::lock_guard lock(mutex_);
  rethrow();
}

void Fetcher::rethrow() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Fetcher::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return n_issued_ == n_asked_; });
}

void Fetcher::work() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const Job job = std::move(queue_.front());
    queue_.pop_front();
    if (!failure_) {
      lock.unlock();
      std::exception_ptr failure;
      SharedEvent event;
      try {
        bring(job);
        event = record_complete();
      } catch (...) {
        failure = std::current_exception();
        // What was enqueued may still read pieces that no event protects, or write to the slot.
        cudaStreamSynchronize(copies_);
        cudaStreamSynchronize(layouts_);
      }
      lock.lock();
      if (event) complete_.push_back({n_issued_ + 1, std::move(event)});
      if (failure) failure_ = failure;
    }
    ++n_issued_;
    changed_.notify_all();
  }
}

SharedEvent Fetcher::record_complete() {
  SharedEvent event;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      event = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (!event) event = make_event();
  TANDEM_CUDA(cudaEventRecord(event.get(), layouts_));
  return event;
}

void Fetcher::bring(const Job& job) {
  // Floats are written to their place by the copies, all else by the kernels.
  const cudaStream_t writer = has_planes(job.weight.dtype) ? layouts_ : copies_;
  if (job.after) TANDEM_CUDA(cudaStreamWaitEvent(writer, job.after.get(), 0));
  if (writer == copies_) {  // in order with what kernels write to the same place
    const Piece& last = pieces_[(next_piece_ + kPieces - 1) % kPieces];
    TANDEM_CUDA(cudaStreamWaitEvent(copies_, last.done.get(), 0));
  }
  const size_t n_bytes = job.weight.n_bytes(), unit = chunk_unit(job.weight);
  const size_t chunk = kPieceBytes / unit * unit;
  const PinnedMemory::List pinned = PinnedMemory::of_process().holding({job.weight.data, n_bytes}, device_);
  if (!pinned.empty()) return bring_pinned(job, pinned, writer == copies_ ? n_bytes : chunk);
  std::function<void()> enqueue_last;
  for (size_t at = 0; at < n_bytes && !stop_; at += chunk) {
    const size_t count = std::min(chunk, n_bytes - at);
    const Piece& piece = pieces_[next_piece_];
    next_piece_ = (next_piece_ + 1) % kPieces;
    TANDEM_CUDA(cudaEventSynchronize(piece.done.get()));  // at once when never recorded
    fill(job, at, count, piece, enqueue_last);
    enqueue_last = [&, at, count] { enqueue(job, at, count, piece); };
  }
  if (enqueue_last) enqueue_last();
}

// From pinned memory, in chunks: through the device's side of pieces, or at once to where they belong.
void Fetcher::bring_pinned(const Job& job, const PinnedMemory::List& pages, size_t chunk) {
  const size_t n_bytes = job.weight.n_bytes();
  for (size_t at = 0; at < n_bytes && !stop_; at += chunk) {
    const size_t count = std::min(chunk, n_bytes - at);
    const Piece& piece = pieces_[next_piece_];
    next_piece_ = (next_piece_ + 1) % kPieces;
    TANDEM_CUDA(cudaStreamWaitEvent(copies_, piece.done.get(), 0));
    copy_pinned(pages, has_planes(job.weight.dtype) ? piece.device : job.to + at, job.weight.data + at, count);
    lay_out_piece(job, at, count, piece);
  }
}

// Copies bytes of a weight to a pinned piece, and calls `meanwhile`, if it is one, in this thread while others begin.
void Fetcher::fill(const Job& job, size_t at, size_t count, const Piece& piece, const std::function<void()>& meanwhile) {
  const auto n_slices = static_cast<int64_t>((count + kSliceBytes - 1) / kSliceBytes);
  std::exception_ptr failure;
  copiers_.run([&](Worker& worker) {
    if (worker.index() == 0 && meanwhile) {
      try {
        meanwhile();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    worker.for_each(n_slices, [&](int64_t i) {
      const size_t from = static_cast<size_t>(i) * kSliceBytes;
      copy_past_cache(piece.pinned + from, job.weight.data + at + from, std::min(kSliceBytes, count - from));
    });
  });
  if (failure) std::rethrow_exception(failure);
}

void Fetcher::enqueue(const Job& job, size_t at, size_t count, const Piece& piece) {
  const bool in_place = !has_planes(job.weight.dtype);
  TANDEM_CUDA(cudaMemcpyAsync(in_place ? job.to + at : piece.device, piece.pinned, count,
                              cudaMemcpyHostToDevice, copies_));
  lay_out_piece(job, at, count, piece);
}

// The driver takes no copy that goes over two ranges which were locked one after the other.
void Fetcher::copy_pinned(const PinnedMemory::List& pages, std::byte* to, const std::byte* from, size_t n_bytes) {
  for (const auto& range : pages) {
    const std::byte *const begin = std::max<const std::byte*>(range->begin(), from),
                    *const end = std::min<const std::byte*>(range->end(), from + n_bytes);
    if (begin >= end) continue;
    TANDEM_CUDA(cudaMemcpyAsync(to + (begin - from), begin, static_cast<size_t>(end - begin),
                                cudaMemcpyHostToDevice, copies_));
  }
}

// What comes after the copy of a piece; floats are where they belong then.
void Fetcher::lay_out_piece(const Job& job, size_t at, size_t count, const Piece& piece) {
  TANDEM_CUDA(cudaEventRecord(piece.copied.get(), copies_));
  TANDEM_CUDA(cudaStreamWaitEvent(layouts_, piece.copied.get(), 0));
  if (has_planes(job.weight.dtype)) lay_out(job.to, job.weight, piece.device, at, count, layouts_);
  TANDEM_CUDA(cudaEventRecord(piece.done.get(), layouts_));
}

}  // namespace tandem::cuda
