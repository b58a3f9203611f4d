// Shared by the ops made of matrix products: encodes one input for several weights, and chooses the number of
// weight rows per item of work.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cpu/compiled_op.h"
#include "cpu/ops/norm.h"

namespace tandem::cpu {

// The encodings of one input x[n, k] for a set of weight dtypes. Which dtypes share an encoding depends on n,
// so each has its own space. x may be what a norm makes: with a token or two every worker then normalizes them for itself,
// which saves a barrier. Immutable after construction.
class EncodedInput {
 public:
  EncodedInput(const LinearKernels& kernels, const float* x, int64_t k, int64_t max_tokens,
               std::vector<DType> dtypes, std::optional<NormRows> norm = {});

  size_t shared_bytes() const { return shared_bytes_; }
  size_t private_bytes() const { return private_bytes_; }  // per worker

  // Called by all workers. Has barriers unless every worker makes its own copy, which is cheaper for a token
  // or two. Returns the start of the encodings, to pass to `at`. room is this worker's, of private_bytes().
  const std::byte* encode(Worker& worker, int64_t n, std::byte* shared, std::byte* room) const;
  const std::byte* at(const std::byte* encodings, DType dtype, int64_t n) const;

 private:
  const float* normalized(const Worker& worker, int64_t n, std::byte* room) const;
  size_t find(DType dtype, int64_t n) const;     // the entry whose encoding this dtype uses
  int64_t chunks(DType dtype, int64_t n) const;  // items of work that encoding n tokens makes

  const LinearKernels& kernels_;
  const float* x_;
  int64_t k_;
  std::vector<DType> dtypes_;    // distinct
  std::vector<size_t> offsets_;  // of each dtype's encoding, for any n
  std::optional<NormRows> norm_;
  size_t shared_bytes_ = 0, private_bytes_ = 0;
  size_t normalized_at_ = 0;  // of the private bytes, those for normalized rows
};

// Whether every worker encodes n rows of k columns itself, as EncodedInput does.
bool encodes_privately(int64_t n, int64_t k);

// The products of nodes with one input (see compiled_op.h), which perhaps is what a norm makes.
CompiledOpPtr compile_linear(const CompileContext& context, std::span<const int32_t> nodes,
                             std::optional<NormRows> norm);
CompiledOpPtr compile_glu(const CompileContext& context, const Node& node, const GluOp& op,
                          std::optional<NormRows> norm);

// Calls f(n) for the numbers of tokens that decide what any number up to max_tokens needs: kernels change with n, but none does
// beyond 256, from where on sizes do not shrink and sizes per token do not grow.
template <class F>
void for_deciding_numbers(int64_t max_tokens, const F& f) {
  constexpr int64_t kLastChange = 256;
  for (int64_t n = 1; n <= std::min(max_tokens, kLastChange); ++n) f(n);
  if (max_tokens > kLastChange) f(max_tokens);
}

// Maximum scratch of multiply for any number of tokens up to max_tokens.
size_t max_scratch_bytes(const LinearKernels& kernels, DType dtype, int64_t max_tokens, int64_t k);

// Rows of a weight [m, k] to claim at a time: enough to be worth a claim, few enough that all workers finish
// together.
int64_t rows_per_item(const LinearKernels& kernels, DType dtype, int64_t n, int64_t m, int64_t k,
                      int n_workers);

// How a product of n tokens with a weight [m, k] is divided into items: strips of rows and, where there are many tokens but
// not rows enough for all workers, parts of the tokens, so that an item still has a strip of some height: it reads each
// token's activations once for all its rows.
struct ProductItems {
  int64_t rows, tokens;      // of an item; the last ones may have less
  int64_t n_rows, n_tokens;  // items along each
  int64_t m, n;

  int64_t count() const { return n_rows * n_tokens; }
  // Sets the tokens of item i and returns its rows. Items of the same rows follow each other.
  std::pair<int64_t, int64_t> select(int64_t i, LinearCall& call) const {
    const int64_t row = i / n_tokens * rows, token = i % n_tokens * tokens;
    call.token0 = token;
    call.token1 = std::min(token + tokens, n);
    return {row, std::min(row + rows, m)};
  }
};
ProductItems divide_product(const LinearKernels& kernels, DType dtype, int64_t n, int64_t m, int64_t k,
                            int n_workers);

// An item of one of several lists.
struct ListItem {
  size_t list;
  int64_t index;
};

// Puts the items of n_lists lists in one order: first the part of every list that belongs to the first node, then that of the
// second. So strips of the rows of several weights go to workers whose node has them. count(i): items of list i. Returns the
// item with this number, which is less than the sum of the counts.
template <class Count>
ListItem item_by_node(const NodeShares& nodes, size_t n_lists, Count count, int64_t number) {
  for (size_t node = 0; node < nodes.size(); ++node) {
    for (size_t list = 0; list < n_lists; ++list) {
      const int64_t n = count(list), begin = nodes.begin(node, n), n_here = nodes.begin(node + 1, n) - begin;
      if (number < n_here) return {list, begin + number};
      number -= n_here;
    }
  }
  TANDEM_CHECK(!"an item of every number below the sum");
  return {};
}

inline size_t align64(size_t n) {
  return (n + 63) & ~size_t{63};
}

}  // namespace tandem::cpu
