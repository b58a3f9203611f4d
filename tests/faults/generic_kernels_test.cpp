// A dtype without kernels of its own: it runs by way of rows of floats wherever it is placed, with the same text
// everywhere, and --explain says so. One that cannot be read is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu/linear_generic.h"
#include "graph/builder.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;

// Of the scalar kernels, all but those of one dtype.
constexpr DType kGeneric = DType::Q5_K;
const cpu::LinearKernels& some_products() {
  static const cpu::LinearKernels table = [] {
    cpu::LinearKernels kernels = cpu::scalar::linear_kernels();
    kernels.has_kernel = [](DType dtype) { return dtype != kGeneric && cpu::scalar::linear_kernels().has_kernel(dtype); };
    return kernels;
  }();
  return table;
}
const cpu::LinearKernels kProducts = cpu::WithGenericPath<some_products>::table();

class GenericKernels : public test::SplitRig {
 protected:
  GenericKernels() { host_ = cpu::make_cpu_device({.n_threads = 1, .n_threads_batch = 1, .products = &kProducts}); }

  std::unique_ptr<Model> model_of(DType dtype, int64_t n_expert) {
    test::TinyShape shape;
    shape.n_embd = 256;
    shape.n_ff = 256;
    shape.n_layer = 3;
    shape.n_expert = n_expert;
    shape.n_expert_used = n_expert > 0 ? 2 : 0;
    shape.dtype = dtype;
    return load("model.gguf", shape);
  }

  // The most likely tokens after a prompt.
  static std::vector<int32_t> greedy_text(Session& session, int n_tokens) {
    std::vector<int32_t> ids;
    std::span<const float> row = session.append(prompt(37));
    for (int i = 0; i < n_tokens; ++i) {
      ids.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
      row = session.append(std::span(&ids.back(), 1));
    }
    return ids;
  }
};

TEST_F(GenericKernels, TheTextIsTheSameWhereverLayersAre) {
  for (const int64_t n_expert : {0, 3}) {
    const auto model = model_of(kGeneric, n_expert);
    Session alone(*model, {host_.get()}, options());
    const std::vector<int32_t> expected = greedy_text(alone, 12);
    test::SimDevice sim({.products = &kProducts});
    for (const Toggle stream : {Toggle::off, Toggle::on}) {
      for (const int64_t ngl : {0, 2, 4}) {
        SCOPED_TRACE(testing::Message() << "-ngl " << ngl << (n_expert > 0 ? " experts" : ""));
        OffloadOptions flags;
        flags.n_gpu_layers = ngl;
        flags.stream = stream;
        Session session(*model, {host_.get(), &sim}, options(flags));
        EXPECT_EQ(greedy_text(session, 12), expected);
      }
    }
  }
}

TEST_F(GenericKernels, ExplainSaysWhereTheyAreUsed) {
  test::SimDevice sim({.products = &kProducts});
  OffloadOptions flags;
  flags.n_gpu_layers = 2;
  const auto explained = [&](const Model& model) {
    std::string table;
    Session session(model, {host_.get(), &sim}, options(flags),
                    [&](const std::string& text) { table = text; });
    return table + session.generic_kernels();
  };
  const std::string line =
      "generic kernels for " + std::string(dtype_name(kGeneric)) + " on CPU, SIM0 (float rows; slower)";
  EXPECT_THAT(explained(*model_of(kGeneric, 0)), HasSubstr(line + "\n"));
  EXPECT_THAT(explained(*model_of(DType::Q4_K, 0)), Not(HasSubstr("generic")));
}

TEST_F(GenericKernels, ADtypeThatCannotBeReadIsRefusedByName) {
  const Weight weight{"table", DType::Q8_1, 1, 8, 256};
  GraphBuilder builder({});
  const TensorId x = builder.embed(&weight);
  const Graph graph = builder.finish(builder.gather_outputs(builder.linear(x, &weight)));
  for (const Node& node : graph.nodes) {
    const bool reads = std::holds_alternative<EmbedOp>(node.op) || std::holds_alternative<LinearOp>(node.op);
    EXPECT_EQ(host_->why_unsupported(graph, node), reads ? "table: dtype Q8_1 has no kernel" : "");
  }
  EXPECT_EQ(host_->dtype_support(DType::Q8_1).read, KernelPath::none);
  EXPECT_EQ(host_->dtype_support(DType::Q8_1).multiply, KernelPath::none);
}

}  // namespace
}  // namespace tandem
