// Writes a few texts as first inputs of the fuzzer to the folder given as argument.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

int main(int n_arguments, char** arguments) {
  if (n_arguments != 2) {
    fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  const std::filesystem::path folder(arguments[1]);
  std::filesystem::create_directories(folder);
  const std::string text =
      "hello world I'LL <tool> <|im_end|></s><s> 12345\r\n\t \u00a0 camelCase e\u0301 中文 \xff\xe2\x82 ½ ▁ "
      "🦙!?";
  for (int subject = 0; subject < 40; ++subject) {
    for (int parse_special = 0; parse_special < 2; ++parse_special) {
      const auto first = static_cast<char>(subject * 2 + parse_special);
      const std::string name = "text" + std::to_string(subject * 2 + parse_special);
      std::ofstream(folder / name, std::ios::binary) << first << text;
    }
  }
  return 0;
}
