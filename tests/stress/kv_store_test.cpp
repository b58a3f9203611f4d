// A store of computed blocks whose writers are killed, and one that several processes use at once: every text is the one of
// a run without a store, and no block is torn.
//
// 40 kills by default, 200 with TANDEM_STRESS=all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/files.h"
#include "stress/running.h"
#include "stress/spawn.h"
#include "support/gguf_bytes.h"
#include "support/tiny_model.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;

class KvStoreStress : public testing::Test {
 protected:
  void SetUp() override {
    TinyShape shape;
    shape.n_layer = 8;
    shape.n_embd = 128;
    tiny_llama(shape).write(model_);
  }

  // Texts of the same letters up to `n_common` tokens.
  static std::string prompt(int which, int n_tokens, int n_common) {
    std::string text;
    for (int i = 0; i < n_tokens; ++i)
      text += static_cast<char>('a' + (i * i + (i < n_common ? 0 : which + i)) % 26);
    return text;
  }
  std::vector<std::string> arguments(const std::string& prompt, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"run", "-m",     model_, "-c",  "512", "-t",  "1",   "--temp",
                                    "0",   "-n",     "8",    "-p",  prompt, "-ctk", "f32", "-ctv", "f32",
                                    "--ignore-eos"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Ended run(const std::string& scratch, const std::string& prompt, const std::vector<std::string>& more) const {
    return JobFolder(directory_.path(scratch)).run({.arguments = arguments(prompt, more)});
  }
  std::vector<std::string> store(const std::string& size = "1GiB") const {
    return {"--kv-store", folder_, "--kv-store-size", size, "--kv-store-info"};
  }
  static size_t n_files(const std::string& folder, std::string_view part) {
    size_t n = 0;
    std::error_code none;
    for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none))
      n += it->path().filename().string().find(part) != std::string::npos ? 1 : 0;
    return n;
  }

  TempDir directory_;
  std::string model_ = directory_.path("tiny.gguf"), folder_ = directory_.path("kv");
  std::mt19937 random_{std::random_device{}()};
};

TEST_F(KvStoreStress, WritersAreKilled) {
  const char* stress = getenv("TANDEM_STRESS");
  const int n_kills = stress && std::string_view(stress) == "all" ? 200 : 40;
  const std::string text = prompt(0, 400, 400);
  const std::string right = run("plain", text, {}).out;
  const Ended whole = run("whole", text, store());
  ASSERT_EQ(whole.out, right) << whole.err;
  const size_t n_blocks = n_files(folder_, ".rows");
  ASSERT_GE(n_blocks, 12u);
  int n_done = 0, n_amid = 0, n_torn = 0;
  // More where the machine is busy: then many come when all has been written.
  for (int i = 0; (n_done < n_kills || n_amid <= n_kills / 4) && i < 10 * n_kills; ++i) {
    fs::remove_all(folder_);
    Running running(arguments(text, store()));
    const size_t until = random_() % n_blocks;
    while (!running.ended() && n_files(folder_, "") < 2 + until) {}  // the lock file, and some blocks or a part of one
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 500));
    if (running.end() != 128 + SIGKILL) continue;
    ++n_done;
    const size_t n = n_files(folder_, ".rows");
    n_amid += n > 0 && n < n_blocks ? 1 : 0;
    n_torn += n_files(folder_, "tmp-") > 0 ? 1 : 0;
    const Ended after = run("after", text, store());
    ASSERT_EQ(after.exit_code, 0) << after.err;
    ASSERT_EQ(after.out, right) << "kill " << i << " after " << n << " blocks:\n" << after.err;
    ASSERT_EQ(after.err.find("damaged"), std::string::npos) << after.err;
    ASSERT_EQ(n_files(folder_, ".rows"), n_blocks);
  }
  printf("%d kills, %d of them with some of %zu blocks written, %d within a block\n", n_done, n_amid, n_blocks, n_torn);
  EXPECT_GE(n_done, n_kills);
  EXPECT_GT(n_amid, n_kills / 4);
}

// In a store so small that each removes what others wrote, while they read it.
TEST_F(KvStoreStress, SeveralProcessesAtOnce) {
  constexpr int kProcesses = 3, kTexts = 5, kRounds = 4;
  std::vector<std::string> texts, right;
  for (int i = 0; i < kTexts; ++i) {
    texts.push_back(prompt(i, 150 + 60 * i, 100));
    right.push_back(run("plain", texts.back(), {}).out);
  }
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(kProcesses);
  std::vector<int> n_loaded(kProcesses);
  for (int process = 0; process < kProcesses; ++process) {
    threads.emplace_back([&, process] {
      for (int i = 0; i < kRounds * kTexts; ++i) {
        const auto which = static_cast<size_t>((i * 2 + process) % kTexts);
        const Ended ended = run("p" + std::to_string(process), texts[which], store("3MiB"));
        if (ended.exit_code != 0 || ended.out != right[which]) wrong[static_cast<size_t>(process)] = ended.out + ended.err;
        if (ended.err.find("damaged") != ended.err.npos) wrong[static_cast<size_t>(process)] = ended.err;
        n_loaded[static_cast<size_t>(process)] += ended.err.find("loaded from") != ended.err.npos ? 1 : 0;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (int process = 0; process < kProcesses; ++process) {
    EXPECT_EQ(wrong[static_cast<size_t>(process)], "");
    EXPECT_GT(n_loaded[static_cast<size_t>(process)], kTexts);
  }
  EXPECT_EQ(n_files(folder_, "tmp-"), 0u);
}

// Whatever byte of whatever block is another: the text is right.
TEST_F(KvStoreStress, FlippedBits) {
  const std::string text = prompt(0, 200, 200);
  const std::string right = run("plain", text, {}).out;
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(run("again", text, store()).out, right);
    std::vector<std::string> paths = files_in(folder_);
    std::erase_if(paths, [](const std::string& path) { return !path.ends_with(".rows"); });
    ASSERT_EQ(paths.size(), 6u);
    const std::string& path = paths[random_() % paths.size()];
    const auto at = static_cast<std::streamoff>(random_() % (i % 2 == 0 ? 256 : fs::file_size(path)));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const auto flipped = static_cast<char>(file.get() ^ (1 << random_() % 8));
    file.seekp(at);
    file.put(flipped);
    file.close();
    const Ended ended = run("flipped", text, store());
    EXPECT_EQ(ended.out, right) << "byte " << at;
    EXPECT_NE(ended.err.find("damaged; removed"), ended.err.npos) << "byte " << at << ": " << ended.err;
  }
}

}  // namespace
}  // namespace tandem::test
