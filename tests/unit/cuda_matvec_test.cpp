// The CUDA products of small batches, run on the host thread by thread: everything except shuffles and
// barriers.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

#include "ggml-cuda/matvec_kernels.h"
#include "unit/cuda_products.h"

namespace tandem::cuda {
namespace {

// The tasks of a lane in a block of the grid; the sums of a pair's lanes come together.
template <int N>
struct LaneTasks {
  const MatvecArgs& args;
  int target;
  TaskShare share;
  int step, warp;
  std::map<int, std::vector<float>>& sums;  // by pair

  int pair(int task) const { return warp_share(share.first + task * step, warp, args.slice_bits).pair; }
  int count() const { return share.count; }
  RowPair rows(int task) const { return row_pair(args, target, pair(task), 0, nullptr); }
  void done(int task, float* lane) const {
    std::vector<float>& of_pair = sums[pair(task)];
    of_pair.resize(2 * N);
    for (size_t i = 0; i < 2 * N; ++i) of_pair[i] += std::exchange(lane[i], 0.0f);
  }
  template <class Prefetch>
  void prefetch(Prefetch&&) const {}
};

// The same work as the grid of launch_matvec, in blocks of three tasks or two.
template <int N, class Kernels>
void run_grid(MatvecArgs args) {
  number_tasks(args);
  const int grid = (args.n_blocks + 2) / 3;
  for (int target = 0; target < n_task_targets(args); ++target) {
    const DeviceWeight& w = args.targets[target].w;
    std::map<int, std::vector<float>> sums;
    for (int block = 0; block < grid; ++block) {
      const TaskShare share = tasks_of_block(args, target, block, grid);
      for (int thread = 0; thread < 32 * kMatvecWarps && share.count > 0; ++thread) {
        const LaneTasks<N> tasks{args, target, share, grid, thread / 32, sums};
        const uint32_t first = first_piece(warp_share(0, thread / 32, args.slice_bits), thread % 32);
        float lane[2 * N] = {};
        Kernels::template with_multiply<N>(w, [&](auto multiply) {
          multiply(tasks, w.k, first, 32u << args.slice_bits, args.input, 0, args.n, lane);
        });
      }
    }
    for (const auto& [pair, s] : sums) {
      for (int t = 0; t < args.n; ++t) {
        store_pair(args, target, pair, t, s[static_cast<size_t>(t)], s[static_cast<size_t>(N + t)]);
      }
    }
  }
}

template <class Kernels>
void run_with(const MatvecArgs& args) {
  if (args.n == 1) return run_grid<1, Kernels>(args);
  if (args.n == 2) return run_grid<2, Kernels>(args);
  return args.n <= 4 ? run_grid<4, Kernels>(args) : run_grid<8, Kernels>(args);
}

void run_matvec(const MatvecArgs& args) {
  for_each_kind(args, [&]<class Kernels>(const MatvecArgs& part) { run_with<Kernels>(part); });
}

// The generic path, also of the formats that have kernels.
struct AnyBlocks {
  template <int N, class Fn>
  static void with_multiply(const DeviceWeight& w, Fn&& fn) {
    BlockFormats::visit(
        w.dtype, [&]<class Block>() { fn([&](auto&&... args) { multiply_blocks<Block, N>(args...); }); });
  }
};

class CudaMatvec : public testing::TestWithParam<DType> {
 protected:
  std::mt19937 rng{7 + static_cast<uint32_t>(GetParam())};
};

TEST_P(CudaMatvec, EqualsTheDequantizedProduct) {
  const DType dtype = GetParam();
  const int block = static_cast<int>(dtype_info(dtype).block_elements);
  // Three rows at least: the error is relative to the norm of the result, and a single sum may be next to nothing.
  for (const auto& [m, k] : {std::pair{3, 32}, {7, 256}, {30, 1024}, {5, 4352}}) {
    const int cols =
        block == 1 ? k + (m == 7 ? 3 : 0) : std::max(block, k / block * block);  // odd rows of floats too
    const HostWeight w(dtype, m, cols, 1, rng);
    for (const int n : {1, 2, 3, 8}) {
      const HostInput x(n, cols, rng);
      std::vector<float> bias = normals(m, rng), y = normals(n * m, rng), expected = y;
      for (int t = 0; t < n; ++t) {
        for (int r = 0; r < m; ++r) expected[t * m + r] += bias[r] + x.dot(w, 0, r, t);
      }
      MatvecArgs args;
      args.targets[0] = {w.device, bias.data(), y.data(), y.data(), 0};
      args.n_targets = 1;
      args.slice_bits = n == 1 ? 2 : n == 2 ? 1 : 0;
      args.input = x.input();
      args.n = n;
      run_matvec(args);
      expect_near(y, expected, dtype_name(dtype));
    }
  }
}

TEST_P(CudaMatvec, GluReadsBothMatricesTogether) {
  const DType dtype = GetParam();
  const int m = 9, k = 512, n = 2;
  const HostWeight gate(dtype, m, k, 1, rng), up(dtype, m, k, 1, rng);
  const HostInput x(n, k, rng);
  const std::vector<float> bias = normals(m, rng);
  for (Activation activation :
       {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu2}) {
    std::vector<float> y(n * m, NAN), expected(n * m);
    for (int t = 0; t < n; ++t) {
      for (int r = 0; r < m; ++r) {
        expected[t * m + r] = activate(activation, x.dot(gate, 0, r, t)) * (x.dot(up, 0, r, t) + bias[r]);
      }
    }
    MatvecArgs args;
    args.targets[0] = {gate.device, nullptr, nullptr, y.data(), 0};
    args.targets[1] = {up.device, bias.data(), nullptr, nullptr, 0};
    args.n_targets = 2;
    args.input = x.input();
    args.n = n;
    args.mode = MatvecMode::glu;
    args.activation = activation;
    run_matvec(args);
    expect_near(y, expected, dtype_name(dtype));
  }
}

// Gate and up for every chosen expert, then the weighted sum of their down products.
TEST_P(CudaMatvec, ComputesTheRoutedExperts) {
  const DType dtype = GetParam();
  const int n = 3, n_used = 2, n_expert = 4, m = 256, k = 512;
  const HostWeight gate(dtype, m, k, n_expert, rng), up(dtype, m, k, n_expert, rng),
      down(dtype, k, m, n_expert, rng);
  const HostInput x(n, k, rng);
  const int ids[n][n_used] = {{3, 0}, {1, 2}, {2, 3}};
  std::vector<float> route, h(n * n_used * m, NAN), residual = normals(n * k, rng), y(n * k, NAN),
                                                    expected = residual;
  for (int t = 0; t < n; ++t) {
    for (int id : ids[t]) route.push_back(std::bit_cast<float>(id));
    for (int i = 0; i < n_used; ++i) route.push_back(0.25f + 0.5f * static_cast<float>(i));
  }
  const auto each_thread = [&](const MatvecArgs& args, int slot, int token, int chosen, int pairs) {
    for (int pair = 0; pair < pairs; ++pair) {
      float sums[2] = {};
      for (int slice = 0; slice < 1 << args.slice_bits; ++slice) {
        for (int lane = 0; lane < 32; ++lane)
          with_kernels_of(dtype, [&]<class Kernels>() {
            expert_lane_sums<Kernels>(args, token, chosen, {pair, slice}, lane, sums);
          });
      }
      store_pair(args, 0, pair, slot, sums[0], sums[1]);
    }
  };
  MatvecArgs args;
  args.targets[0] = {gate.device, nullptr, nullptr, h.data(), 0};
  args.targets[1] = {up.device, nullptr, nullptr, nullptr, 0};
  args.n_targets = 2;
  args.input = x.input();
  args.route = route.data();
  args.n = n;
  args.n_used = n_used;
  args.slice_bits = 1;
  args.mode = MatvecMode::experts_glu;
  for (int s = 0; s < n * n_used; ++s) each_thread(args, s, s / n_used, s % n_used, n_pairs(args.mode, m));
  const HostInput hidden(n * n_used, m, h);
  for (int t = 0; t < n; ++t) {
    for (int i = 0; i < n_used; ++i) {
      const int s = t * n_used + i;
      for (int r = 0; r < m; ++r) {
        const float want =
            activate(Activation::silu, x.dot(gate, ids[t][i], r, t)) * x.dot(up, ids[t][i], r, t);
        ASSERT_NEAR(h[s * m + r], want, 1e-3f * (1.0f + std::fabs(want)));
      }
      for (int r = 0; r < k; ++r) {
        expected[t * k + r] += (0.25f + 0.5f * static_cast<float>(i)) * hidden.dot(down, ids[t][i], r, s);
      }
    }
  }
  args.targets[0] = {down.device, nullptr, residual.data(), y.data(), 0};
  args.n_targets = 1;
  args.input = hidden.input();
  args.mode = MatvecMode::experts_down;
  for (int t = 0; t < n; ++t) each_thread(args, t, t, 0, n_pairs(args.mode, k));
  expect_near(y, expected, dtype_name(dtype));
}

TEST_P(CudaMatvec, TheGenericPathMultipliesTheFilesBlocks) {
  const DType dtype = GetParam();
  const int block = static_cast<int>(dtype_info(dtype).block_elements), m = 7;
  if (block == 1) GTEST_SKIP() << "no blocks";
  for (const int k : {block, 5 * block, 4352}) {
    const std::vector<float> w = normals(m * k, rng);
    Aligned file(static_cast<int64_t>(row_bytes(dtype, k)) * m);
    std::vector<float> values(w.size());
    quantize_row(dtype, w.data(), file.data(), m * k);
    dequantize_row(dtype, file.data(), values.data(), m * k);
    DeviceWeight weight{dtype, m, k, k / kBlockColumns, 0, {}};
    weight.planes.low = file.data();
    for (const int n : {1, 2, 3, 8}) {
      const HostInput x(n, k, rng);
      std::vector<float> y(n * m, NAN), expected(n * m);
      for (int i = 0; i < n * m; ++i) {
        double sum = 0;
        for (int j = 0; j < k; ++j) sum += static_cast<double>(values[i % m * k + j]) * x.x[i / m * k + j];
        expected[i] = static_cast<float>(sum);
      }
      MatvecArgs args;
      args.targets[0] = {weight, nullptr, nullptr, y.data(), 0};
      args.n_targets = 1;
      args.slice_bits = n == 1 ? 2 : 0;
      args.input = x.input();
      args.n = n;
      run_with<AnyBlocks>(args);
      expect_near(y, expected, dtype_name(dtype));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaMatvec, testing::ValuesIn(test::quantizable_dtypes()),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// Weights of several dtypes and sizes: two that share a launch, and others.
TEST(CudaMatvecGroup, EveryTargetGetsItsBlocks) {
  std::mt19937 rng(5);
  const int k = 512;
  const HostInput x(2, k, rng);
  std::vector<std::unique_ptr<HostWeight>> weights;
  std::vector<std::vector<float>> y, expected;
  MatvecArgs args;
  for (const auto& [dtype, m] :
       {std::pair{DType::Q4_K, 33}, {DType::Q6_K, 1}, {DType::F16, 8}, {DType::Q8_0, 17}}) {
    const HostWeight& w = *weights.emplace_back(std::make_unique<HostWeight>(dtype, m, k, 1, rng));
    y.emplace_back(2 * m, NAN);
    expected.emplace_back(2 * m);
    for (int i = 0; i < 2 * m; ++i) expected.back()[i] = x.dot(w, 0, i % m, i / m);
    args.targets[args.n_targets++] = {w.device, nullptr, nullptr, y.back().data(), 0};
  }
  args.input = x.input();
  args.n = 2;
  run_matvec(args);
  for (size_t i = 0; i < y.size(); ++i) expect_near(y[i], expected[i], "target");
}

// Every block has as many tasks as the others or one less, and together they have each once.
TEST(CudaMatvecShares, BlocksShareTheTasksOfAllTargets) {
  MatvecArgs args;
  for (const int m : {4096, 1024, 1, 1000}) args.targets[args.n_targets++].w.m = m;
  for (int bits : {0, 1, 2}) {
    args.slice_bits = bits;
    number_tasks(args);
    for (const int grid : {1, 7, 300, args.n_blocks}) {
      std::multiset<std::pair<int, int>> seen;
      int least = args.n_blocks, most = 0;
      for (int block = 0; block < grid; ++block) {
        int count = 0;
        for (int target = 0; target < args.n_targets; ++target) {
          const TaskShare share = tasks_of_block(args, target, block, grid);
          count += share.count;
          for (int i = 0; i < share.count; ++i) seen.insert({target, share.first + i * grid});
        }
        least = std::min(least, count), most = std::max(most, count);
      }
      EXPECT_LE(most - least, 1);
      EXPECT_EQ(seen.size(), static_cast<size_t>(args.n_blocks));
      EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), seen.size());
    }
  }
}

// The products of Llama 3.1 8B on an H100 (FLOORS.md): how many of the blocks that run at once have work to the end.
TEST(CudaMatvecShares, GridsKeepTheBlocksBusyAlike) {
  constexpr int kResident = matvec_resident(1, 132);
  EXPECT_EQ(kResident, 792);
  struct Product {
    int pairs, pieces, slice_bits, blocks;
  };
  for (const Product& p : {Product{3072, 128, 0, 768},
                           {2048, 128, 0, 512},
                           {14336, 128, 0, 717},
                           {2048, 448, 2, 683},
                           {64128, 128, 0, 764}}) {
    const MatvecGrid grid = matvec_grid(p.pairs, p.pieces, kResident);
    EXPECT_EQ(grid.slice_bits, p.slice_bits) << p.pairs << " pairs";
    EXPECT_EQ(grid.blocks, p.blocks) << p.pairs << " pairs";
  }
  EXPECT_EQ(matvec_grid(512, 128, kResident).slice_bits, 2);  // few rows: every warp helps
}

// The lanes of a pair's warps take every piece once, and every pair has its warps.
TEST(CudaMatvecShares, CoverEveryPieceOnce) {
  for (int bits : {0, 1, 2}) {
    std::multiset<std::pair<int, int>> seen;
    for (int block = 0; block < 3; ++block) {
      for (int warp = 0; warp < kMatvecWarps; ++warp) {
        const WarpShare share = warp_share(block, warp, bits);
        for (int lane = 0; lane < 32; ++lane) {
          for (int piece = 32 * share.slice + lane; piece < 300; piece += 32 << bits)
            seen.insert({share.pair, piece});
        }
      }
    }
    ASSERT_EQ(seen.size(), static_cast<size_t>(3 * pairs_per_block(bits) * 300));
    for (int pair = 0; pair < 3 * pairs_per_block(bits); ++pair) {
      for (int piece = 0; piece < 300; ++piece) ASSERT_EQ(seen.count({pair, piece}), 1u);
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
