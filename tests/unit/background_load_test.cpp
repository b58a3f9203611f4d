#include "base/background_load.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace tandem {
namespace {

TEST(BackgroundLoad, ReadsTheLineOfAllCpus) {
  const auto seconds = parse_cpu_seconds("cpu  100 20 30 400 50 6 7 8 9 10", 100);
  ASSERT_TRUE(seconds);
  EXPECT_DOUBLE_EQ(seconds->busy, 1.71);  // without guests, which the first two include
  EXPECT_DOUBLE_EQ(seconds->idle, 4.5);
  for (const char* other : {"", "cpu", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu 1 2 three 4 5 6 7 8"}) {
    EXPECT_FALSE(parse_cpu_seconds(other, 100)) << other;
  }
}

// Detects the load of another process.
TEST(BackgroundLoad, SeesAnotherProcess) {
  std::ifstream stat("/proc/stat");
  std::string line;
  std::getline(stat, line);
  const auto so_far = parse_cpu_seconds(line, 100);
  if (!so_far || so_far->busy == 0) GTEST_SKIP() << "this system does not tell how busy its CPUs are";
  const pid_t other = fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    volatile unsigned n = 0;
    for (;;) n = n + 1;
  }
  const BackgroundLoad load;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double share = load.share();
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  const double one_cpu = 1.0 / static_cast<double>(std::thread::hardware_concurrency());
  EXPECT_GT(share, 0.3 * one_cpu);
  EXPECT_LE(share, 1.0);
}

}  // namespace
}  // namespace tandem
