// A chat with a model whose layers are recurrent: a turn computes only what is new, counted by the device.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_device.h"
#include "engine/conversation.h"
#include "support/forwarding_device.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

// Counts the tokens of all steps.
class CountingDevice final : public test::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void run(Executable& executable, const StepShape& shape) override {
    n_tokens += shape.n_tokens;
    ForwardingDevice::run(executable, shape);
  }
  int64_t n_tokens = 0;
};

class FamiliesChat : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    test::HfFolder hf = test::family_folder(test::load_family(GetParam()));
    hf.config["max_position_embeddings"] = 4096;
    hf.write(directory_.path("hf"));
    tools::ConvertOptions convert;
    convert.n_threads = 1;
    const std::string path = directory_.path("model.gguf");
    write_conversion(tools::prepare_conversion(directory_.path("hf"), convert), convert, path);
    model_ = Model::load(path);
    EngineOptions options;
    options.context.n_ctx = 4096;
    options.context.n_ubatch = 64;
    session_ = std::make_unique<Session>(*model_, std::vector<Device*>{&device_}, options);
  }

  // Greedy, of printable characters.
  static ConversationOptions options() {
    ConversationOptions o;
    o.sampling.temp = 0;
    for (int32_t id = 0; id < 3; ++id) o.sampling.logit_bias.push_back({id, -INFINITY});
    for (int32_t id = 98; id < 128; ++id) o.sampling.logit_bias.push_back({id, -INFINITY});
    o.n_predict = 40;
    return o;
  }

  test::TempDir directory_;
  CountingDevice device_{cpu::make_cpu_device({1, 1})};
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
};

TEST_P(FamiliesChat, TenTurnsComputeEachTokenOnce) {
  ASSERT_TRUE(session_->kv_config().is_recurrent());
  const ChatTemplate chat_template(
      "{% for m in messages %}<s>{{ m.role }}</s>{{ m.content }}{% endfor %}<s>assistant</s>");
  Conversation chat(*session_, chat_template, options());
  for (int turn = 0; turn < 10; ++turn) {
    chat.ask(std::string(150, static_cast<char>('a' + turn)), {});
    EXPECT_EQ(device_.n_tokens, static_cast<int64_t>(session_->tokens().size())) << "turn " << turn;
  }
  EXPECT_GT(session_->tokens().size(), 2000u);
  // Another answer begins at a checkpoint, at most a block before the end of the prompt.
  device_.n_tokens = 0;
  chat.regenerate({});
  EXPECT_LE(device_.n_tokens, 39 + 33);
}

INSTANTIATE_TEST_SUITE_P(Recurrent, FamiliesChat,
                         testing::Values("qwen3_next", "lfm2", "granite_hybrid", "nemotron_h_moe"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
