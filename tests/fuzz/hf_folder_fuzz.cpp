// Converts a model folder in which one JSON file is the input: config.json, or one of those beside it. What is accepted
// names its tensors and their sources.
//
// The first byte selects the file.
#include "fuzz/fuzz_target.h"
#include "support/hf_folder.h"
#include "tools/convert/convert.h"

namespace tandem::tools {
namespace {

constexpr const char* kFiles[] = {"config.json", "generation_config.json", "tokenizer_config.json",
                                  "special_tokens_map.json", "model.safetensors.index.json"};

// A folder with a tiny Llama and no JSON file that the input could be.
class Folder {
 public:
  Folder() {
    hf_ = test::family_folder(test::load_family("llama"));
    hf_.write(input_.path());
    for (const char* name : kFiles) std::filesystem::remove(input_.path(name));
  }

  void convert(size_t which, std::string_view text) {
    const bool is_config = which == 0;
    if (is_config && has_config_) {
      std::filesystem::remove(input_.path("config.json"));  // the usual one, in the way of the input
    } else if (!is_config && !has_config_) {
      input_.set(kFiles[which], text);  // takes the link away from config.json
      test::write_file(input_.path("config.json"), hf_.config.dump());
    }
    has_config_ = !is_config;
    input_.set(kFiles[which], text);
    fuzz::accepts({ErrorCode::bad_file, ErrorCode::io},
                  [&] { check(prepare_conversion(input_.path(), {})); });
  }

 private:
  static void check(const Conversion& conversion) {
    for (const TensorMapping& t : conversion.tensors) {
      TANDEM_CHECK(!t.name.empty() && t.n_elements() > 0);
      TANDEM_CHECK(!t.sources.empty() || static_cast<int64_t>(t.values.size()) == t.n_elements());
    }
    TANDEM_CHECK(conversion.n_bytes() > 0);
  }

  test::HfFolder hf_;
  fuzz::InputFolder input_;
  bool has_config_ = false;  // config.json is the usual one
};

}  // namespace
}  // namespace tandem::tools

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static tools::Folder folder;
  fuzz::Input input(data, size);
  const size_t which = input.byte() % std::size(tools::kFiles);
  folder.convert(which, input.rest());
  return 0;
}
