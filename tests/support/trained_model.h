// Trained models with a text and logits that an independent program computed in float64.
//
// The demo model is part of the repository, so every test that needs a trained model has one. stories260K is an
// extra, from the shared data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tandem::test {

struct Golden {
  std::vector<int32_t> ids;  // of the prompt, then greedy ones
  size_t n_prompt = 0;
  std::map<int64_t, std::vector<float>> logits;  // at some positions
};

// The demo model as it is, in Q8_0.
std::string demo_model();
// Writes it with its weights as F32. No product then rounds activations to 8 bits, as the reference does not.
void write_demo_f32(const std::string& path);
Golden demo_golden();  // scripts/reference_demo.py

std::filesystem::path stories_model();  // an extra
Golden stories_golden();

}  // namespace tandem::test
