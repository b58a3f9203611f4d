#include "ggml-cuda/stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ggml-cuda/compiled_op.h"

namespace tandem::cuda {
namespace {

// Large copies go in pieces of this size, each with an event, so that the host fills one while others travel.
constexpr size_t kPieceBytes = size_t{2} << 20;
constexpr size_t kMaxRecorded = 256;

bool is_complete(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) cudaGetLastError();  // else the next launch would seem to have failed
  return status != cudaErrorNotReady;
}

}  // namespace

Stream::Stream(Use use)
    : n_pinned_bytes_(use == Use::side ? kSideRingBytes : kRingBytes), ring_(n_pinned_bytes_, 256) {
  try {
    TANDEM_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    if (use == Use::runs) pin();
  } catch (...) {
    close();
    throw;
  }
}

void Stream::pin() {
  if (!pinned_)
    TANDEM_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), n_pinned_bytes_, cudaHostAllocDefault));
}

Stream::~Stream() {
  small_copies_.clear();
  if (stream_) cudaStreamSynchronize(stream_);
  close();
}

void Stream::close() {
  recorded_.clear();
  spare_.clear();
  if (pinned_) cudaFreeHost(pinned_);
  if (stream_) cudaStreamDestroy(stream_);
}

SharedEvent make_event() {
  cudaEvent_t event;
  // Blocking: a wait that spins would take a core from the threads that compute or copy.
  TANDEM_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  return SharedEvent(event, [](cudaEvent_t e) { cudaEventDestroy(e); });
}

uint64_t Stream::record() {
  make_small_copies();
  // Events may never be waited for: reuse those that are complete.
  while (recorded_.size() >= kMaxRecorded && is_complete(recorded_.front().event.get())) forget(1);
  if (spare_.empty()) spare_.push_back(make_event());
  TANDEM_CUDA(cudaEventRecord(spare_.back().get(), stream_));
  recorded_.push_back({last_ + 1, std::move(spare_.back())});
  spare_.pop_back();
  return ++last_;
}

void Stream::forget(size_t n_events) {
  for (size_t i = 0; i < n_events; ++i) {
    if (recorded_[i].event.use_count() == 1) spare_.push_back(std::move(recorded_[i].event));
  }
  recorded_.erase(recorded_.begin(), recorded_.begin() + n_events);
}

SharedEvent Stream::shared(uint64_t event) const {
  TANDEM_CHECK(event <= last_);
  if (recorded_.empty() || event < recorded_.front().number) return nullptr;
  return recorded_[event - recorded_.front().number].event;
}

void Stream::wait_for(Stream& other) {
  make_small_copies();
  const SharedEvent event = other.shared(other.record());
  TANDEM_CUDA(cudaStreamWaitEvent(stream_, event.get(), 0));
}

void Stream::reach(uint64_t event) {
  TANDEM_CHECK(event <= last_);
  if (recorded_.empty() || event < recorded_.front().number) return;
  const size_t index = event - recorded_.front().number;
  const cudaEvent_t awaited = recorded_[index].event.get();
  waits_.wait([&] { return is_complete(awaited); }, [&] { cudaEventSynchronize(awaited); });
  TANDEM_CUDA(cudaEventSynchronize(awaited));  // whether it has failed
  forget(index + 1);
}

void Stream::wait(uint64_t event) {
  reach(event);
  while (!ring_.empty() && ring_.oldest().payload.done <= event) finish_oldest();
}

// Frees the oldest piece, after its copy is over.
void Stream::finish_oldest() {
  const Piece piece = ring_.oldest();
  while (last_ < piece.payload.done) record();
  reach(piece.payload.done);
  if (piece.payload.target) std::memcpy(piece.payload.target, pinned_ + piece.begin, piece.end - piece.begin);
  ring_.release_oldest();
}

Stream::Piece& Stream::take(size_t n_bytes) {
  pin();
  Piece* piece = ring_.take(n_bytes);
  while (!piece) {
    finish_oldest();
    piece = ring_.take(n_bytes);
  }
  piece->payload.done = last_ + 1;
  return *piece;
}

void Stream::copy_in(std::byte* to, const std::byte* from, size_t n_bytes) {
  if (n_bytes == 0) return;
  if (n_bytes <= kSmallCopyBytes) return add_small_copy(to, from, n_bytes);
  make_small_copies();
  for (size_t at = 0; at < n_bytes; at += kPieceBytes) {
    const size_t n = std::min(kPieceBytes, n_bytes - at);
    const Piece& piece = take(n);
    std::memcpy(pinned_ + piece.begin, from + at, n);
    TANDEM_CUDA(cudaMemcpyAsync(to + at, pinned_ + piece.begin, n, cudaMemcpyHostToDevice, stream_));
    if (n == kPieceBytes) record();
  }
}

// Copies of one kernel happen in any order.
void Stream::add_small_copy(std::byte* to, const std::byte* from, size_t n_bytes) {
  const bool overlaps = std::any_of(small_copies_.begin(), small_copies_.end(), [&](const SmallCopy& c) {
    return to < c.to + c.n_bytes && c.to < to + n_bytes;
  });
  if (overlaps || small_copies_.size() == kMaxSmallCopies) make_small_copies();
  std::byte* pinned = pinned_ + take(n_bytes).begin;
  std::memcpy(pinned, from, n_bytes);
  small_copies_.push_back({to, pinned, static_cast<uint32_t>(n_bytes)});
}

void Stream::make_small_copies() {
  if (small_copies_.empty()) return;
  const std::vector<SmallCopy> copies = std::exchange(small_copies_, {});
  launch_small_copies(copies, stream_);
}

void Stream::copy_out(std::byte* to, const std::byte* from, size_t n_bytes) {
  make_small_copies();
  for (size_t at = 0; at < n_bytes; at += kPieceBytes) {
    const size_t n = std::min(kPieceBytes, n_bytes - at);
    Piece& piece = take(n);
    piece.payload.target = to + at;
    TANDEM_CUDA(cudaMemcpyAsync(pinned_ + piece.begin, from + at, n, cudaMemcpyDeviceToHost, stream_));
    if (n == kPieceBytes) record();
  }
}

std::span<std::byte> Stream::idle_ring() {
  pin();
  while (!ring_.empty()) finish_oldest();
  return {pinned_, n_pinned_bytes_};
}

}  // namespace tandem::cuda
