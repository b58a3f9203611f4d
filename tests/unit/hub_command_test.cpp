// pull, list and rm as processes, and the other commands with a model from the hub.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/gguf_bytes.h"
#include "support/hub_files.h"
#include "support/hub_server.h"
#include "support/process.h"
#include "support/terminal.h"
#include "support/text_files.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::HubReply;
using test::HubRequest;
using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class HubCommand : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::tiny_llama().write(folder_.path("tiny.gguf"));
    model_ = test::file_bytes(folder_.path("tiny.gguf"));
    hub_.add("user/tiny-GGUF", "tiny-Q4_K_M.gguf", model_);
  }
  std::vector<std::string> environment() const {
    return {"HF_ENDPOINT=" + hub_.url(),
            "HF_HOME=" + folder_.path("home"),
            "XDG_CACHE_HOME=" + folder_.path("cache"),
            "HF_HUB_CACHE=",
            "HUGGINGFACE_HUB_CACHE=",
            "HF_HUB_OFFLINE=",
            "HF_TOKEN=",
            "TMPDIR=" + folder_.path("temporary")};
  }
  // stdout and stderr together.
  Outcome run(const std::string& arguments, const std::string& more_environment = "") {
    fs::create_directories(folder_.path("temporary"));
    std::string before = "env";
    for (const std::string& variable : environment()) before += " '" + variable + "'";
    return test::shell(before + " " + more_environment, arguments + " 2>&1 </dev/null");
  }
  std::string snapshot(const std::string& file) const {
    return folder_.path(
               "home/hub/models--user--tiny-GGUF/snapshots/0123456789abcdef0123456789abcdef01234567/") +
           file;
  }

  test::TempDir folder_;
  test::HubServer hub_;
  std::string model_;
};

TEST_F(HubCommand, PullPrintsThePath) {
  const Outcome pulled = run("pull user/tiny-GGUF --log-disable");
  EXPECT_EQ(pulled.exit_code, 0);
  EXPECT_EQ(pulled.out, snapshot("tiny-Q4_K_M.gguf") + "\n");
  EXPECT_EQ(test::file_bytes(snapshot("tiny-Q4_K_M.gguf")), model_);
}

TEST_F(HubCommand, ModelsOfTheHubRun) {
  const Outcome alone = run("run -m " + folder_.path("tiny.gguf") + " -p a -n 4 -s 1 --log-disable");
  for (const char* model : {"-hf user/tiny-GGUF", "-m user/tiny-GGUF:q4_k_m --offline",
                            "--hf-repo user/tiny-GGUF -hff "
                            "tiny-Q4_K_M.gguf"}) {
    const Outcome outcome = run("run " + std::string(model) + " -p a -n 4 -s 1 --log-disable");
    EXPECT_EQ(outcome.exit_code, 0) << model;
    EXPECT_EQ(outcome.out, alone.out) << model;
  }
  EXPECT_EQ(hub_.count("/storage/"), 1u);
  EXPECT_EQ(run("chat -hf user/tiny-GGUF -p a -n 2 --log-disable").exit_code, 0);
  EXPECT_EQ(run("tokenize -hf user/tiny-GGUF -p a").exit_code, 0);
}

TEST_F(HubCommand, PlanAndInspectReadOnlyTheHeader) {
  // Weights of 3 MiB after a small header: most of them are not asked for.
  test::TinyShape shape;
  shape.n_ff = 2048;
  test::tiny_llama(shape).write(folder_.path("large.gguf"));
  const std::string large = test::file_bytes(folder_.path("large.gguf"));
  ASSERT_GT(large.size(), size_t{3} << 20);
  hub_.add("user/large-GGUF", "large-Q8_0.gguf", large);
  size_t n_sent = 0;
  hub_.change = [&](const HubRequest& request, HubReply& reply) {
    if (request.at_storage) n_sent += reply.body.size();
  };
  // With the user's own cache, which knows the machine's speeds: to measure them takes seconds.
  const Outcome planned = run("plan -hf user/large-GGUF:Q8_0", "XDG_CACHE_HOME=");
  EXPECT_EQ(planned.exit_code, 0) << planned.out;
  EXPECT_THAT(
      planned.out,
      HasSubstr("user/large-GGUF:Q8_0: read only the header (1.0 MiB); the whole download would be "));
  EXPECT_EQ(n_sent, size_t{1} << 20);
  const Outcome inspected = run("inspect user/large-GGUF");
  EXPECT_THAT(inspected.out, AllOf(HasSubstr("file           user/large-GGUF:Q8_0"),
                                   HasSubstr("size           " + std::to_string(large.size()) + " bytes")));
  EXPECT_TRUE(fs::is_empty(folder_.path("temporary")));
  EXPECT_FALSE(fs::exists(folder_.path("home/hub/models--user--large-GGUF/blobs")));
}

TEST_F(HubCommand, AHeaderThatGrowsIsReadInSteps) {
  test::RawGguf file = test::small_gguf();
  file.pairs.push_back(test::kv_string("big", std::string(3 << 20, 'x')));
  hub_.add("user/header-GGUF", "header-Q4_0.gguf", file.bytes());
  EXPECT_THAT(run("inspect user/header-GGUF").out, AllOf(HasSubstr("tensors: 2"), HasSubstr("second")));
  hub_.add("user/page-GGUF", "page-Q4_0.gguf", "<html>");
  const Outcome page = run("inspect user/page-GGUF");
  EXPECT_EQ(page.exit_code, 3);
  EXPECT_THAT(page.out, HasSubstr("the magic is not \"GGUF\""));
}

TEST_F(HubCommand, ErrorsHaveOneLineAndACode) {
  const auto expect = [&](const std::string& arguments, int code, const std::string& text,
                          const std::string& more_environment = "") {
    const Outcome outcome = run(arguments, more_environment);
    EXPECT_EQ(outcome.exit_code, code) << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr(text)) << arguments;
  };
  expect("pull nonsense", 2, "pull: 'nonsense' is not a name on the hub");
  expect("pull user/tiny-GGUF:Q2_K", 2, "user/tiny-GGUF: there is no Q2_K; it has Q4_K_M");
  expect("pull user/none", 5, "user/none: not found at 127.0.0.1");
  expect("run -p a", 2,
         "no model is given: name its file after the command or with -m, or a model on the hub with -hf");
  expect("run -m a.gguf -hf user/tiny-GGUF -p a", 2, "--model and --hf-repo both name a model");
  expect("run -hf ../x -p a", 2, "--hf-repo: '../x' is not a name on the hub");
  expect("run -m nosuchfolder/nosuchmodel.gguf -p a", 5, "cannot open");
  expect("pull user/other --offline", 5, "not downloaded, and --offline forbids to ask the hub");
  expect("pull user/other", 5, "not downloaded, and HF_HUB_OFFLINE forbids to ask the hub",
         "HF_HUB_OFFLINE=1");
  expect("pull user/other", 5, "http is not safe for another machine", "HF_ENDPOINT=http://192.0.2.1");
  expect("pull user/other", 2, "HF_TOKEN: not an access token", "HF_TOKEN='a b'");
  expect("pull user/other", 5, "not downloaded, and the hub cannot be reached",
         "HF_ENDPOINT=http://127.0.0.1:1");
}

TEST_F(HubCommand, ATokenFromTheFileOfTheHubsClient) {
  fs::create_directories(folder_.path("home"));
  test::write_file(folder_.path("home/token"), "hf_from_file\n");
  run("pull user/tiny-GGUF");
  EXPECT_EQ(hub_.requests().at(0).header("authorization"), "Bearer hf_from_file");
  run("pull user/tiny-GGUF -hft hf_given", "HF_TOKEN=hf_variable");
  EXPECT_EQ(hub_.requests().back().header("authorization"), "Bearer hf_given");
}

TEST_F(HubCommand, ListsAndRemoves) {
  EXPECT_THAT(run("list").out, HasSubstr("no models in "));
  run("pull user/tiny-GGUF");
  EXPECT_THAT(run("list").out, AllOf(HasSubstr("user/tiny-GGUF:Q4_K_M"), HasSubstr("just now")));
  const auto json = nlohmann::json::parse(run("list --json").out);
  EXPECT_EQ(json["models"][0]["name"], "user/tiny-GGUF:Q4_K_M");
  EXPECT_EQ(json["models"][0]["n_bytes"], model_.size());
  EXPECT_EQ(json["models"][0]["path"], snapshot("tiny-Q4_K_M.gguf"));

  EXPECT_THAT(run("rm user/other --yes").out, HasSubstr("user/other: no such model was downloaded"));
  const Outcome unasked = run("rm user/tiny-GGUF");
  EXPECT_EQ(unasked.exit_code, 2);
  EXPECT_TRUE(fs::exists(snapshot("tiny-Q4_K_M.gguf")));
  EXPECT_EQ(run("rm user/tiny-GGUF:q4_k_m --yes").exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_.path("home/hub/models--user--tiny-GGUF")));
}

// Links that lead nowhere, and a folder for temporary files that does not exist.
TEST_F(HubCommand, OddFoldersAreNoBugs) {
  EXPECT_EQ(run("pull user/tiny-GGUF").exit_code, 0);
  const fs::path cache = folder_.path("home/hub");
  for (const fs::path& loop :
       {cache / "models--user--loop", cache / "models--user--tiny-GGUF/snapshots/loop",
        cache / "models--user--tiny-GGUF/blobs/loop.incomplete", fs::path(snapshot("")) / "loop.gguf"}) {
    fs::create_symlink(loop.filename(), loop);
  }
  const Outcome list = run("list -v");
  EXPECT_EQ(list.exit_code, 0) << list.out;
  EXPECT_THAT(list.out, HasSubstr("user/tiny-GGUF"));
  EXPECT_EQ(run("rm -y user/tiny-GGUF").exit_code, 0);
  const Outcome header = run("inspect user/tiny-GGUF", "TMPDIR=" + folder_.path("nowhere"));
  EXPECT_EQ(header.exit_code, 5) << header.out;
  EXPECT_THAT(header.out, HasSubstr("set TMPDIR"));
}

TEST_F(HubCommand, RmAsksOnATerminal) {
  run("pull user/tiny-GGUF");
  test::TerminalOptions options;
  options.environment = environment();
  const auto answer = [&](const std::string& keys) {
    test::Terminal terminal({test::binary_path(), "rm", "user/tiny-GGUF"}, options);
    EXPECT_TRUE(terminal.wait_for("? [y/N] "));
    terminal.type(keys + "\n");
    EXPECT_EQ(terminal.wait_for_exit(), 0);
  };
  answer("");
  EXPECT_TRUE(fs::exists(snapshot("tiny-Q4_K_M.gguf")));
  answer("y");
  EXPECT_FALSE(fs::exists(snapshot("tiny-Q4_K_M.gguf")));
}

TEST_F(HubCommand, CtrlCKeepsWhatThereIs) {
  hub_.add("user/large-GGUF", "large-Q4_K_M.gguf", test::random_bytes(3000000, 1));
  hub_.change = [](const HubRequest&, HubReply& reply) { reply.delay_ms = 100; };  // 5 seconds for all
  test::TerminalOptions options;
  options.environment = environment();
  options.environment.push_back("TERM=xterm");
  test::Terminal terminal({test::binary_path(), "pull", "user/large-GGUF"}, options);
  ASSERT_TRUE(terminal.wait_for("%"));  // the bar
  terminal.type("\x03");
  EXPECT_TRUE(terminal.wait_for(" are kept, and the same command continues"));
  EXPECT_EQ(terminal.wait_for_exit(), 130);
  hub_.change = nullptr;
  const Outcome resumed = run("pull user/large-GGUF");
  EXPECT_EQ(resumed.exit_code, 0);
  EXPECT_THAT(resumed.out, HasSubstr("of it already here"));
  EXPECT_THAT(hub_.requests().back().header("range"), testing::StartsWith("bytes="));
  EXPECT_NE(hub_.requests().back().header("range"), "bytes=0-");
}

// An empty folder of libraries in front hides nothing; a file that is no library does.
TEST_F(HubCommand, StartsWithoutLibcurl) {
  fs::create_directories(folder_.path("lib"));
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"}) {
    test::write_file(folder_.path("lib/") + name, "not a library");
  }
  const Outcome outcome = run("pull user/tiny-GGUF", "LD_LIBRARY_PATH=" + folder_.path("lib"));
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_THAT(outcome.out, HasSubstr("downloading needs the library libcurl.so.4 (package libcurl4)"));
  EXPECT_EQ(run("list", "LD_LIBRARY_PATH=" + folder_.path("lib")).exit_code, 0);
}

}  // namespace
}  // namespace tandem
