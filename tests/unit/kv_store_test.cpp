// --kv-store and tandem kv as a user has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kText = "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k l m n o p q r s t u v w x";

class KvStore : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::TinyModel model = test::tiny_llama();
    add_chat_template(model);
    model.write(model_);
  }

  test::Outcome run(const std::string& more, const std::string& text = kText) const {
    return test::shell("", "run -m " + model_ + " -n 6 --temp 0 --ignore-eos -p '" + text + "' " + more);
  }
  test::Outcome kv(const std::string& arguments) const {
    return test::shell("", "kv " + arguments + " --kv-store " + folder_ + " 2>&1");
  }
  std::string store() const { return "--kv-store " + folder_; }
  size_t n_blocks() const {
    const std::vector<std::string> paths = files_in(folder_);
    return static_cast<size_t>(
        std::ranges::count_if(paths, [](const std::string& path) { return path.ends_with(".rows"); }));
  }

  test::TempDir directory_;
  std::string model_ = directory_.path("tiny.gguf"), folder_ = directory_.path("kv");
};

TEST_F(KvStore, ASecondRunLoads) {
  const std::string right = run("2>/dev/null").out;
  const test::Outcome first = run(store() + " --kv-store-info 2>&1");
  EXPECT_THAT(first.out, HasSubstr(right));
  EXPECT_THAT(first.out, Not(HasSubstr("loaded from")));
  EXPECT_THAT(first.out, HasSubstr("loaded 0 blocks (0.0 KiB), wrote 2 ("));
  EXPECT_EQ(n_blocks(), 2u);
  const test::Outcome second = run(store() + " 2>&1");
  EXPECT_THAT(second.out, HasSubstr(right));
  EXPECT_THAT(second.out, HasSubstr("kv store: 64 of the prompt's "));
  EXPECT_THAT(second.out, HasSubstr("loaded from " + folder_));
  const Json end = Json::parse(run(store() + " --json 2>/dev/null | tail -n 1").out);
  EXPECT_EQ(end["n_loaded"], 64);
  EXPECT_EQ(end["n_reused"], 64);
  EXPECT_THAT(run(store() + " -ctk q8_0 -ctv q8_0 2>&1").out, Not(HasSubstr("loaded from"))) << "other types";
  EXPECT_THAT(run(store() + " --kv-rotate on 2>&1").out, Not(HasSubstr("loaded from"))) << "rotated heads";
  EXPECT_THAT(run(store() + " --sparse-kv 8,20 2>&1").out, Not(HasSubstr("loaded from"))) << "sparse reads";
  EXPECT_THAT(run(store() + " --kv-type-layers 1=f16/bf16 2>&1").out, Not(HasSubstr("loaded from")));
  EXPECT_THAT(run(store() + " --rope-freq-base 5000 2>&1").out, Not(HasSubstr("loaded from"))) << "another rotation";
  EXPECT_THAT(run(store() + " --no-sandbox 2>&1").out, HasSubstr("loaded from"));
}

// What one command computes, the others load.
TEST_F(KvStore, CommandsShareIt) {
  const std::string text(70, 'a');
  const auto chat = [&](const std::string& message) {
    return test::shell("", "chat -m " + model_ + " -n 4 --temp 0 --json " + store() + " -p '" + message + "' 2>/dev/null | tail -n 1").out;
  };
  EXPECT_EQ(Json::parse(chat(text + " one"))["n_loaded"], 0);
  EXPECT_EQ(Json::parse(chat(text + " two"))["n_loaded"], 64);
  const std::string lines = directory_.path("in.jsonl"), answers = directory_.path("out.jsonl");
  std::string requests;
  for (int i = 0; i < 3; ++i) requests += Json{{"prompt", std::string(kText) + std::to_string(i)}}.dump() + "\n";
  test::write_file(lines, requests);
  const auto batch = [&] {
    fs::remove(answers);
    return test::shell("", "batch -m " + model_ + " -n 4 --temp 0 -i " + lines + " -o " + answers + " " + store() + " 2>&1").out;
  };
  EXPECT_THAT(batch(), Not(HasSubstr("loaded from")));
  EXPECT_THAT(batch(), HasSubstr("loaded from " + folder_));
  EXPECT_THAT(run(store() + " 2>&1").out, HasSubstr("loaded from " + folder_)) << "what batch kept";
}

TEST_F(KvStore, ListedAndRemoved) {
  EXPECT_EQ(kv("ls").exit_code, 5) << "there is no such folder";
  run(store() + " 2>&1");
  const std::string table = kv("ls").out;
  EXPECT_THAT(table, HasSubstr("llama"));
  EXPECT_THAT(table, HasSubstr("just now"));
  const Json list = Json::parse(kv("ls --json").out);
  EXPECT_EQ(list["models"][0]["n_blocks"], 2);
  const std::string id = list["models"][0]["id"];
  EXPECT_THAT(table, HasSubstr(id.substr(0, 12)));
  EXPECT_EQ(kv("rm </dev/null").exit_code, 2) << "asks, and nobody is there";
  EXPECT_EQ(kv("rm --yes abcdef").exit_code, 2) << "no such model";
  EXPECT_EQ(n_blocks(), 2u);
  EXPECT_THAT(kv("rm --yes " + id.substr(0, 12)).out, HasSubstr("are free again"));
  EXPECT_EQ(n_blocks(), 0u);
  EXPECT_THAT(kv("ls").out, HasSubstr("nothing is kept in"));
  EXPECT_EQ(test::shell("", "kv ls 2>&1").exit_code, 2) << "no folder is named";
}

TEST_F(KvStore, WhatCannotBeUsed) {
  fs::create_directories(directory_.path("mine"));
  test::write_file(directory_.path("mine/thesis.txt"), "text");
  const test::Outcome mine = run("--kv-store " + directory_.path("mine") + " 2>&1");
  EXPECT_EQ(mine.exit_code, 2);
  EXPECT_THAT(mine.out, HasSubstr("found thesis.txt"));
  EXPECT_EQ(run("--kv-store " + model_ + " 2>&1").exit_code, 2) << "a file";
  const std::string right = run("2>/dev/null").out;
  const test::Outcome nowhere = run("--kv-store /proc/no/such 2>&1");
  EXPECT_EQ(nowhere.exit_code, 0);
  EXPECT_THAT(nowhere.out, HasSubstr("nothing is loaded or kept"));
  EXPECT_THAT(nowhere.out, HasSubstr(right));
  EXPECT_EQ(run("--kv-store off 2>/dev/null").out, right);
  EXPECT_FALSE(fs::exists("off"));
}

// A folder of somebody else's, say: one line, and what is there is still loaded.
TEST_F(KvStore, AFolderThatCanOnlyBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const std::string right = run("2>/dev/null").out;
  run(store() + " 2>&1");
  chmod(folder_.c_str(), 0500);
  const test::Outcome again = run(store() + " 2>&1");
  EXPECT_THAT(again.out, HasSubstr("loaded from"));
  const test::Outcome other = run(store() + " 2>&1", "z" + std::string(kText));
  chmod(folder_.c_str(), 0700);
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_THAT(other.out, HasSubstr("no more computed blocks are kept there"));
}

}  // namespace
}  // namespace tandem
