// Names of models and files on the hub: what is meant, what is chosen, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/gguf_bytes.h"
#include "support/hub_files.h"
#include "tools/hub/api.h"
#include "tools/hub/choice.h"
#include "tools/hub/digest.h"
#include "tools/hub/gguf_header.h"
#include "tools/hub/model_name.h"
#include "tools/hub/settings.h"
#include "tools/hub/url.h"

namespace tandem::tools {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(HubName, IsUserRepoAndPerhapsQuantization) {
  const auto name = parse_model_name("bartowski/Llama-3.2-1B-Instruct-GGUF:q4_k_m");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->repo, "bartowski/Llama-3.2-1B-Instruct-GGUF");
  EXPECT_EQ(name->quant, "q4_k_m");
  EXPECT_EQ(parse_model_name("a/b")->text(), "a/b");
  for (const char* pasted : {"hf.co/a/b:Q8_0", "hf://a/b:Q8_0", "huggingface.co/a/b:Q8_0"}) {
    ASSERT_TRUE(parse_model_name(pasted)) << pasted;
    EXPECT_EQ(parse_model_name(pasted)->text(), "a/b:Q8_0");
  }
  EXPECT_EQ(parse_model_name("https://huggingface.co/a/b/tree/main")->text(), "a/b");
  for (const std::string bad : {"", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b:", "a/b:Q4 K", "a b/c",
                                "./b", "a/b\n", "a/b--c", "~/b", "-a/b", "a/b:../x"}) {
    EXPECT_FALSE(parse_model_name(bad)) << bad;
  }
  EXPECT_FALSE(parse_model_name(std::string("a/b\0c", 5)));
}

TEST(HubName, AFileThatIsMissingIsNotAHubName) {
  const test::TempDir folder;
  std::filesystem::create_directory(folder.path("models"));
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path(""));
  EXPECT_FALSE(means_hub_model("model.gguf"));
  EXPECT_FALSE(means_hub_model("nosuchfolder/model.gguf"));
  EXPECT_FALSE(means_hub_model("models/nosuchmodel")) << "the folder exists";
  EXPECT_FALSE(means_hub_model("/nosuchfolder/x"));
  EXPECT_TRUE(means_hub_model("nosuchuser/repo"));
  EXPECT_TRUE(means_hub_model("nosuchuser/repo:Q4_0"));
  std::filesystem::current_path(before);
}

TEST(HubChoice, ReadsTheQuantizationFromTheName) {
  EXPECT_EQ(quant_of("Llama-3.2-1B-Instruct-Q4_K_M.gguf"), "Q4_K_M");
  EXPECT_EQ(quant_of("llama-2-7b.Q5_0.gguf"), "Q5_0");
  EXPECT_EQ(quant_of("qwen2-0_5b-instruct-q8_0.gguf"), "Q8_0");
  EXPECT_EQ(quant_of("model_q4_0.gguf"), "Q4_0");
  EXPECT_EQ(quant_of("Q4_K_M/model-00001-of-00003.gguf"), "Q4_K_M");
  EXPECT_EQ(quant_of("Qwen3-UD-Q4_K_XL.gguf"), "UD-Q4_K_XL");
  EXPECT_EQ(quant_of("UD-IQ2_XXS/DeepSeek-R1-UD-IQ2_XXS-00001-of-00004.gguf"), "UD-IQ2_XXS");
  EXPECT_EQ(quant_of("gemma-3-1b-it-BF16.gguf"), "BF16");
  EXPECT_EQ(quant_of("gpt-oss-20b-mxfp4.gguf"), "MXFP4");
  EXPECT_EQ(quant_of("model.gguf"), "");
  EXPECT_EQ(quant_of("Phi-3-mini-4k-instruct-q4.gguf"), "Q4");
}

std::vector<RepoModel> models(const std::vector<std::string>& paths) {
  std::vector<RepoFile> files;
  for (const std::string& path : paths) files.push_back({path, 1000, std::string(64, 'a')});
  return models_in(files);
}

TEST(HubChoice, TakesTheNamedQuantizationWhateverItsCase) {
  const auto all = models({"m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-Q4_K_S.gguf", "m-UD-Q8_0.gguf", "README.md"});
  EXPECT_EQ(choose_model(all, "a/b", "q8_0", "").model->path(), "m-Q8_0.gguf");
  EXPECT_EQ(choose_model(all, "a/b", "ud-q8_0", "").model->path(), "m-UD-Q8_0.gguf");
  EXPECT_EQ(choose_model(all, "a/b", "", "").model->path(), "m-Q4_K_M.gguf");
  EXPECT_EQ(choose_model(all, "a/b", "", "").why, "");
  EXPECT_EQ(choose_model(all, "a/b", "", "m-Q4_K_S.gguf").model->quant, "Q4_K_S");
  EXPECT_EQ(choose_model(models({"m-UD-Q4_K_XL.gguf"}), "a/b", "Q4_K_XL", "").model->quant, "UD-Q4_K_XL");
}

TEST(HubChoice, SaysWhatItTookAndWhatThereIs) {
  const auto all = models({"m-F16.gguf", "m-Q8_0.gguf", "m-IQ1_S.gguf"});
  const Choice choice = choose_model(all, "a/b", "", "");
  EXPECT_EQ(choice.model->quant, "Q8_0");
  EXPECT_EQ(choice.why, "there is no Q4_K_M; taking Q8_0 of F16, IQ1_S, Q8_0");
  EXPECT_EQ(message_of([&] { choose_model(all, "a/b", "Q4_0", ""); }),
            "a/b: there is no Q4_0; it has F16, IQ1_S, Q8_0");
  EXPECT_EQ(message_of([&] { choose_model(all, "a/b", "", "x.gguf"); }),
            "a/b: there is no file x.gguf; it has m-F16.gguf, m-IQ1_S.gguf, m-Q8_0.gguf");
  const auto two = models({"one-Q4_K_M.gguf", "two-Q4_K_M.gguf"});
  EXPECT_THAT(choose_model(two, "a/b", "Q4_K_M", "").why, HasSubstr("2 models fit; taking one-Q4_K_M.gguf"));
}

TEST(HubChoice, LeavesOutWhatGoesWithAModel) {
  const auto all = models({"mmproj-model-f16.gguf", "m-mmproj-Q4_K_M.gguf", "imatrix.gguf", "m-Q8_0.gguf"});
  EXPECT_EQ(all.size(), 1u);
  EXPECT_THAT(message_of([&] { choose_model(models({"model.safetensors"}), "a/b", "", ""); }),
              HasSubstr("a/b: the repository has no model in GGUF format"));
}

TEST(HubChoice, TakesAllPartsOfASplitModel) {
  const auto all = models({"Q8_0/m-00002-of-00003.gguf", "Q8_0/m-00001-of-00003.gguf",
                           "Q8_0/m-00003-of-00003.gguf", "m-F16-00001-of-00002.gguf"});
  const Choice choice = choose_model(all, "a/b", "Q8_0", "");
  ASSERT_EQ(choice.model->files.size(), 3u);
  EXPECT_EQ(choice.model->path(), "Q8_0/m-00001-of-00003.gguf");
  EXPECT_EQ(choice.model->files[2].path, "Q8_0/m-00003-of-00003.gguf");
  EXPECT_EQ(message_of([&] { choose_model(all, "a/b", "F16", ""); }),
            "a/b: m-F16-00001-of-00002.gguf is one of 2 parts, of which the repository has 1");
}

TEST(HubPath, StaysInsideItsFolder) {
  for (const char* path : {"a.gguf", "Q4_K_M/a.gguf", "a b.gguf", "..a/b..", "\xc3\xa4.gguf"}) {
    EXPECT_TRUE(is_safe_path(path)) << path;
  }
  for (const std::string path : {"", "..", "../a", "a/../b", "/a", "a//b", "a/", "./a", "a\\b", "a\nb"}) {
    EXPECT_FALSE(is_safe_path(path)) << path;
  }
  EXPECT_FALSE(is_safe_path(std::string("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(2000, 'a')));
}

TEST(HubUrl, IsHttpsOrOnThisMachine) {
  EXPECT_EQ(parse_url("https://Example.org/a/b?c=1")->origin(), "https://example.org:443");
  EXPECT_EQ(parse_url("http://127.0.0.1:80/")->origin(), parse_url("http://127.0.0.1")->origin());
  EXPECT_EQ(parse_url("http://[::1]:99/x")->port, "99");
  for (const char* bad : {"ftp://a/b", "file:///etc/passwd", "https://", "https://user@host/", "host/path",
                          "https://a b/", "https://a:b/", "https://a\n/"}) {
    EXPECT_FALSE(parse_url(bad)) << bad;
  }
  EXPECT_NO_THROW(require_secure("https://example.org/x"));
  EXPECT_NO_THROW(require_secure("http://localhost:8080/x"));
  EXPECT_EQ(message_of([] { require_secure("http://example.org/x"); }),
            "http://example.org/x: http is not safe for another machine, needed https");
  EXPECT_THAT(message_of([] { require_secure("http://127.0.0.1.example.org/x"); }),
              HasSubstr("needed https"));
  EXPECT_EQ(encode_path("a b/\xc3\xa4#?%.gguf"), "a%20b/%C3%A4%23%3F%25.gguf");
  EXPECT_EQ(decode_path(encode_path("a b/\xc3\xa4#?%.gguf")), "a b/\xc3\xa4#?%.gguf");
}

TEST(HubDigest, MatchesPublishedValues) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Digest git(std::string(40, '0'), 6);  // git hash-object of "hello\n"
  git.add(std::as_bytes(std::span("hello\n", 6)));
  EXPECT_EQ(git.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_TRUE(is_object_id(sha256_hex("")));
  EXPECT_FALSE(is_object_id("../../../etc/passwd"));
}

TEST(HubToken, CannotBreakARequest) {
  EXPECT_EQ(checked_token("HF_TOKEN", " hf_abc\n"), "hf_abc");
  EXPECT_THAT(message_of([] { checked_token("HF_TOKEN", "hf_a\r\nHost: b"); }),
              HasSubstr("HF_TOKEN: not an access token: found byte 0x0d"));
}

TEST(GgufHeader, EndsWhereTheTensorTableEnds) {
  const test::RawGguf file = test::small_gguf();
  const std::string header = file.header(), all = file.bytes();
  EXPECT_EQ(gguf_header_end(test::as_bytes(all)), header.size());
  EXPECT_EQ(gguf_header_end(test::as_bytes(header)), header.size());
  for (size_t n = 0; n < header.size(); ++n) {
    EXPECT_EQ(gguf_header_end(test::as_bytes(header).first(n)), std::nullopt) << n;
  }
}

TEST(GgufHeader, LetsTheParserRefuseWhatIsNoHeader) {
  const std::string page = "<!DOCTYPE html><html><body>Please log in</body></html>";
  EXPECT_EQ(gguf_header_end(test::as_bytes(page)), page.size());
  test::RawGguf file = test::small_gguf();
  file.pairs.push_back(test::ByteString().string("bad").u32(99).bytes());
  EXPECT_EQ(gguf_header_end(test::as_bytes(file.bytes())), file.bytes().size());
  // Lengths near 2^64 must not wrap around.
  file = test::small_gguf();
  file.pairs.push_back(test::ByteString().string("bad").u32(9).u32(10).u64(UINT64_MAX / 4).bytes());
  EXPECT_EQ(gguf_header_end(test::as_bytes(file.bytes())), std::nullopt);
}

}  // namespace
}  // namespace tandem::tools
