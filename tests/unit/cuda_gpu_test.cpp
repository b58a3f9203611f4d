// Which GPUs a build has code for, and which kernels they use.
#include <gtest/gtest.h>

#include "ggml-cuda/architectures.h"
#include "ggml-cuda/gpu.h"

namespace tandem::cuda {
namespace {

TEST(CudaGpu, MachineCodeRunsOnLaterMinorsOfItsGeneration) {
  for (const int capability : {80, 86, 87, 89})
    EXPECT_TRUE(has_code_for("80-real", capability)) << capability;
  for (const int capability : {75, 90, 100, 120})
    EXPECT_FALSE(has_code_for("80-real", capability)) << capability;
  EXPECT_FALSE(has_code_for("86-real", 80));
}

// A GPU newer than the build needs PTX.
TEST(CudaGpu, NewerGpusNeedPtx) {
  EXPECT_FALSE(has_code_for("80-real,86-real,89-real,90-real", 100));
  EXPECT_FALSE(has_code_for("80-real,86-real,89-real,90-real", 120));
  EXPECT_TRUE(has_code_for("80-real,86-real,89-real,90", 120));
  EXPECT_TRUE(has_code_for("90-real,80-virtual", 120));
  EXPECT_FALSE(has_code_for("90-virtual", 89));
  EXPECT_TRUE(has_code_for("90-virtual", 90));
}

TEST(CudaGpu, CodeOfAnArchitectureWithALetterRunsOnNoOther) {
  EXPECT_TRUE(has_code_for("90a-real", 90));
  EXPECT_FALSE(has_code_for("100a-real", 103));
  EXPECT_FALSE(has_code_for("90a", 100));
  EXPECT_TRUE(has_code_for("90a-real,120", 121));
}

TEST(CudaGpu, NamesWithoutNumbersAreForEveryGpu) {
  EXPECT_TRUE(has_code_for("native", 90));
  EXPECT_FALSE(has_code_for("", 90));
}

// GeForce and RTX GPUs, of compute capability 12 too, multiply 16-bit floats with F32 sums at half their speed.
TEST(CudaGpu, OnlyServerGpusConvertWeightsForLongPrompts) {
  for (const int capability : {90, 100, 103, 110}) EXPECT_EQ(max_int8_tokens(capability), 192) << capability;
  EXPECT_EQ(max_int8_tokens(80), 512);
  for (const int capability : {86, 87, 89, 120, 121})
    EXPECT_EQ(max_int8_tokens(capability), INT64_MAX) << capability;
}

TEST(CudaGpu, PanelsTakeLittleOfTheMemory) {
  EXPECT_EQ(panel_bytes_for(int64_t{80} << 30), 64 << 20);
  EXPECT_EQ(panel_bytes_for(int64_t{8} << 30), 32 << 20);
}

}  // namespace
}  // namespace tandem::cuda
