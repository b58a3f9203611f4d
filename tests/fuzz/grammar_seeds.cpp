// Writes grammars and schemas as first inputs of the fuzzer to the folder given as argument.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/schemas.h"

int main(int n_arguments, char** arguments) {
  if (n_arguments != 2) {
    fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  const std::filesystem::path folder(arguments[1]);
  std::filesystem::create_directories(folder);
  int n = 0;
  const auto write = [&](char kind, const std::string& text) {
    std::ofstream(folder / ("seed" + std::to_string(n++)), std::ios::binary) << kind << text;
  };
  for (const char* schema : tandem::test::kSchemas) write('1', schema);
  for (const char* grammar : {"root ::= \"a\" | [b-d]{2,3} x # end\nx ::= (\"e\" | .)* root?\n",
                              "root ::= [^\\n\\u00e9\\U0001f999-] | \"\\x41\\\"\"+",
                              "root ::= \"[\" (root (\",\" root)*)? \"]\"\n  | \"é\"{0,5}",
                              "root ::= a b\na ::= b? \"x\"\nb ::= \"\" | \"y\" a"}) {
    write('0', grammar);
  }
  return 0;
}
