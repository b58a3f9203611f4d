// Separates a model's reasoning from its answer, however the text is cut into pieces.
#include "text/reasoning.h"

#include <gtest/gtest.h>

#include "text/builtin_templates.h"
#include "text/chat_template.h"

namespace tandem {
namespace {

struct SplitAnswer {
  std::string reasoning, answer;
  bool operator==(const SplitAnswer&) const = default;
};

// All of `text` in pieces of n bytes.
SplitAnswer split_answer(const std::string& prompt, const std::string& text, size_t n) {
  SplitAnswer s;
  ReasoningSplitter splitter(prompt, [&](AnswerPart part, std::string_view piece) {
    EXPECT_FALSE(piece.empty());
    (part == AnswerPart::reasoning ? s.reasoning : s.answer) += piece;
  });
  for (size_t i = 0; i < text.size(); i += n) splitter.add(std::string_view(text).substr(i, n));
  splitter.finish();
  return s;
}

void expect_split(const std::string& prompt, const std::string& text, const SplitAnswer& expected) {
  for (size_t n = 1; n <= text.size() + 1; ++n) {
    const SplitAnswer s = split_answer(prompt, text, n);
    EXPECT_EQ(s.reasoning, expected.reasoning) << "in pieces of " << n;
    EXPECT_EQ(s.answer, expected.answer) << "in pieces of " << n;
  }
}

TEST(Reasoning, MarksOfTheFamilies) {
  expect_split("", "<think>\nLet me see.\n</think>\n\nFour.", {"Let me see.", "Four."});
  expect_split("", "[THINK]hm[/THINK]Four.", {"hm", "Four."});
  expect_split("<|start|>assistant",
               "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final<|message|>Four.",
               {"2+2", "Four."});
  expect_split("", "<|channel|>final<|message|>Four.", {"", "Four."});
  expect_split("<|turn>model\n", "<|channel>thought\n2+2\n<channel|>Four.", {"2+2", "Four."});
  expect_split("<|turn>model\n<|channel>thought\n<channel|>", "Four.", {"", "Four."});
  expect_split("<|im_start|>assistant\n<think>\n", "hm\n</think>\n\nFour.", {"hm", "Four."});
  expect_split("", "<think>\n\n</think>\n\nFour.", {"", "Four."});
}

TEST(Reasoning, TextThatLooksLikeAMark) {
  expect_split("", "a <think> b </think> c", {"", "a <think> b </think> c"});
  expect_split("", "x < y <thin", {"", "x < y <thin"});
  expect_split("", "<thinking about it", {"", "<thinking about it"});
  expect_split("", "<think>never closed", {"never closed", ""});
  expect_split("", "<think>a </think", {"a </think", ""});
  expect_split("", "", {"", ""});
  EXPECT_TRUE(ReasoningSplitter::is_mark("<|channel|>"));
  EXPECT_TRUE(ReasoningSplitter::is_mark("</think>"));
  EXPECT_FALSE(ReasoningSplitter::is_mark("<|im_end|>"));
  EXPECT_FALSE(ReasoningSplitter::is_mark(""));
}

nlohmann::ordered_json talk() {
  return {{{"role", "system"}, {"content", "Be brief."}},
          {{"role", "user"}, {"content", " Hi "}},
          {{"role", "assistant"}, {"content", "Hello."}},
          {{"role", "user"}, {"content", "2+2?"}}};
}

std::string rendered(std::string_view name) {
  RenderOptions options;
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  return ChatTemplate(find_builtin_template(name)->text).render(talk(), options);
}

TEST(BuiltinTemplates, AreWhatTheFamiliesWereTrainedWith) {
  EXPECT_EQ(
      rendered("chatml"),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"
      "Hello.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      rendered("llama3"),
      "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
      "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|><|start_header_id|>assistant<|end_header_id|"
      ">"
      "\n\n");
  EXPECT_EQ(rendered("llama2"),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] 2+2? [/INST]");
  EXPECT_EQ(rendered("mistral"), "<s>[INST] Be brief.\n\n Hi  [/INST] Hello.</s>[INST] 2+2? [/INST]");
  EXPECT_EQ(
      rendered("gemma"),
      "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
      "<start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(rendered("phi3"),
            "<|system|>\nBe brief.<|end|>\n<|user|>\n Hi "
            "<|end|>\n<|assistant|>\nHello.<|end|>\n<|user|>\n2+2?<|end|>\n"
            "<|assistant|>\n");
  EXPECT_EQ(rendered("zephyr"),
            "<|system|>\nBe brief.</s>\n<|user|>\n Hi </s>\n<|assistant|>\nHello.</s>\n<|user|>\n2+2?</s>\n"
            "<|assistant|>\n");
  EXPECT_EQ(rendered("vicuna"), "<s>Be brief.\n\nUSER: Hi\nASSISTANT: Hello.</s>\nUSER: 2+2?\nASSISTANT:");
  EXPECT_EQ(find_builtin_template("nope"), nullptr);
  EXPECT_NE(find_builtin_template(kDefaultTemplate), nullptr);
}

}  // namespace
}  // namespace tandem
