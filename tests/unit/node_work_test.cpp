// The planner's operations of recurrent layers are those that the kernels do, counted one by one.
#include "plan/node_work.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem {
namespace {

constexpr int64_t kChunk = 32;

// Calls pair(t, u) for the pairs of a token and one of its chunk that is not after it.
template <class Pair>
void for_each_pair(int64_t n_tokens, Pair&& pair) {
  for (int64_t first = 0; first < n_tokens; first += kChunk) {
    for (int64_t t = first; t < std::min(n_tokens, first + kChunk); ++t) {
      for (int64_t u = first; u <= t; ++u) pair(t, u);
    }
  }
}

double planned(const Op& op, const StepLoad& load) {
  Node node{};
  node.op = op;
  return node_work(Graph{}, node, load, {}).n_ops;
}

TEST(NodeWork, CountsTheDeltaRule) {
  DeltaRuleOp op;
  op.n_head_k = 2;
  op.n_head_v = 6;
  op.head_dim_k = 16;
  op.head_dim_v = 24;
  const int64_t n_state = op.n_head_v * op.head_dim_k * op.head_dim_v;
  for (const int64_t n_sequences : {1, 3}) {
    for (const int64_t n : {32, 64, 320}) {
      double count = 0;
      for (int64_t s = 0; s < n_sequences; ++s) {
        for_each_pair(n, [&](int64_t, int64_t) {
          count += static_cast<double>(2 * 2 * op.n_head_k * op.head_dim_k);  // k^T k, q^T k
          count += static_cast<double>(2 * 2 * op.n_head_v * op.head_dim_v);  // c and y by earlier c
        });
        count += static_cast<double>(3 * 2 * n * n_state);  // k^T S, q^T S, the state by c
      }
      const double got = planned(op, {.n_tokens = n * n_sequences, .n_sequences = n_sequences});
      EXPECT_NEAR(got, count, 1e-9 * count);
    }
  }
  // Alone: the old state decays and is multiplied by k; the correction is added; the new state is multiplied by q.
  EXPECT_EQ(planned(op, {.n_tokens = 3, .n_sequences = 3}),
            static_cast<double>(3 * (1 + 2 + 2 + 2) * n_state));
}

TEST(NodeWork, CountsMamba2) {
  SsmScanOp op;
  op.n_head = 6;
  op.n_group = 3;
  op.head_dim = 24;
  op.n_state = 16;
  const int64_t n_state = op.n_head * op.head_dim * op.n_state;
  for (const int64_t n : {32, 96}) {
    double count = static_cast<double>(2 * 2 * n * n_state);  // c^T S, the state by x
    for_each_pair(n, [&](int64_t, int64_t) {
      count += static_cast<double>(2 * op.n_group * op.n_state);  // c^T b
      count += static_cast<double>(2 * op.n_head * op.head_dim);  // y by earlier x
    });
    EXPECT_NEAR(planned(op, {.n_tokens = n}), count, 1e-9 * count);
  }
  EXPECT_EQ(planned(op, {.n_tokens = 1}), static_cast<double>((1 + 2 + 2) * n_state));
}

}  // namespace
}  // namespace tandem
