// The kinds of kernels of matvec.h, by the dtypes that they multiply.
#pragma once

#include <algorithm>

#include "ggml-cuda/dtypes.h"
#include "ggml-cuda/matvec.h"

namespace tandem::cuda {

// The kernels of some dtypes, mostly of one: a kernel compiled for what its matrices have keeps its sums in registers, and no other
// dtype's loop takes any from it.
template <DType... kTypes>
struct KernelsOf {
  static constexpr bool has(DType dtype) { return ((dtype == kTypes) || ...); }
  static constexpr int kGridWords = std::max({1, grid_entries(kTypes)...});  // of shared memory; 1: no grid

  // Calls fn with the function that multiplies rows of w: (tasks, k, first, step, input, token0, n, sums) as above.
  template <int N, class Fn>
  TANDEM_HD TANDEM_FLAT static void with_multiply(const DeviceWeight& w, Fn&& fn) {
    const auto of_type = [&]<DType T>() TANDEM_FLAT {
      if constexpr (!is_plain(T)) {
        fn([&](auto&&... args) TANDEM_FLAT { multiply_pieces<T, N>(args...); });
      } else if (w.n_pieces == w.k) {
        fn([&](auto&&... args) TANDEM_FLAT { multiply_elements<N>(T, args...); });
      } else {
        fn([&](auto&&... args) TANDEM_FLAT { multiply_floats<T, N>(args...); });
      }
    };
    if constexpr (sizeof...(kTypes) == 1) {
      (of_type.template operator()<kTypes>(), ...);
    } else {
      (void)((w.dtype == kTypes && (of_type.template operator()<kTypes>(), true)) || ...);
    }
  }
  TANDEM_HD static void make(DType, uint32_t* grid, int thread, int n_threads) {
    if constexpr (kGridWords > 1) (make_grid<kTypes>(grid, thread, n_threads), ...);
  }
};

// The others.
struct GenericKernels {
  static bool has(DType dtype) { return is_generic(dtype); }
  static constexpr int kGridWords = 1;
  template <int N, class Fn>
  TANDEM_HD static void with_multiply(const DeviceWeight& w, Fn&& fn) {
    for_generic_block(
        w.dtype, [&]<class Block>() { fn([&](auto&&... args) { multiply_blocks<Block, N>(args...); }); });
  }
};

// Calls fn.template operator()<Kernels>() with those for a dtype.
template <class Fn>
void with_kernels_of(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::F32: return fn.template operator()<KernelsOf<DType::F32>>();
    case DType::F16: return fn.template operator()<KernelsOf<DType::F16>>();
    case DType::BF16: return fn.template operator()<KernelsOf<DType::BF16>>();
    default: break;
  }
  if (is_generic(dtype)) return fn.template operator()<GenericKernels>();
  for_format(dtype, [&]<DType T>() { fn.template operator()<KernelsOf<T>>(); });
}

// The same for those of the first of some targets, and as many others as go with it: the mixtures that K types come in (queries and
// keys of one, values of the other) have kernels for both.
template <class Fn>
void with_kernels_of(const MatvecArgs& args, Fn&& fn) {
  const auto any = [&](DType dtype) {
    return std::any_of(args.targets, args.targets + args.n_targets, [=](const MatvecTarget& t) { return t.w.dtype == dtype; });
  };
  if (any(DType::Q6_K)) {
    if (any(DType::Q4_K)) return fn.template operator()<KernelsOf<DType::Q4_K, DType::Q6_K>>();
    if (any(DType::Q5_K)) return fn.template operator()<KernelsOf<DType::Q5_K, DType::Q6_K>>();
  }
  with_kernels_of(args.targets[0].w.dtype, fn);
}

// Calls fn.template operator()<Kernels>(part) for each kind that the targets want, with those of that kind.
template <class Fn>
void for_each_kind(MatvecArgs args, Fn&& fn) {
  while (args.n_targets > 0) {
    with_kernels_of(args, [&]<class Kernels>() {
      const auto is_of_kind = [](const MatvecTarget& target) { return Kernels::has(target.w.dtype); };
      MatvecArgs part = args;
      MatvecTarget* const end = args.targets + args.n_targets;
      part.n_targets = static_cast<int>(std::copy_if(args.targets, end, part.targets, is_of_kind) - part.targets);
      args.n_targets = static_cast<int>(std::remove_if(args.targets, end, is_of_kind) - args.targets);
      fn.template operator()<Kernels>(part);
    });
  }
}

}  // namespace tandem::cuda
