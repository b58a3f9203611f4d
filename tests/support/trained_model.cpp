#include "support/trained_model.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "gguf/file.h"
#include "gguf/quants.h"
#include "gguf/writer.h"
#include "support/paths.h"

namespace tandem::test {
namespace {

Golden read_golden(const std::filesystem::path& path, size_t n_prompt) {
  const auto json = nlohmann::json::parse(std::ifstream(path));
  Golden golden;
  golden.ids = json.at("ids").get<std::vector<int32_t>>();
  golden.n_prompt = json.value("n_prompt", n_prompt);
  for (const auto& [position, row] : json.at("logits_at").items()) {
    golden.logits[std::stoll(position)] = row.get<std::vector<float>>();
  }
  return golden;
}

}  // namespace

std::string demo_model() {
  return (test_data("..") / "models" / "tandem-demo-Q8_0.gguf").lexically_normal().string();
}

void write_demo_f32(const std::string& path) {
  const GgufFile source(demo_model());
  GgufWriter writer(path);
  for (const Metadata::Entry& entry : source.metadata().entries())
    writer.metadata().set(entry.key, entry.value);
  writer.metadata().set("general.file_type", Value(uint32_t{0}));
  for (const TensorInfo& t : source.tensors()) {
    writer.add_tensor(t.name, DType::F32, std::span(t.dims, static_cast<size_t>(t.n_dims)));
  }
  for (const TensorInfo& t : source.tensors()) {
    const int64_t width = t.dims[0], n_rows = t.n_elements() / width;
    const size_t n_row_bytes = row_bytes(t.dtype, width);
    std::vector<float> values(static_cast<size_t>(t.n_elements()));
    for (int64_t row = 0; row < n_rows; ++row) {
      dequantize_row(t.dtype, t.data + static_cast<size_t>(row) * n_row_bytes, values.data() + row * width,
                     width);
    }
    writer.write_tensor(t.name, std::as_bytes(std::span(values)));
  }
  writer.finish();
}

Golden demo_golden() {
  return read_golden(test_data("golden/demo.json"), 0);
}

std::filesystem::path stories_model() {
  return shared_data("stories260K.gguf");
}

Golden stories_golden() {
  return read_golden(shared_data("stories260K.golden.json"), 5);
}

}  // namespace tandem::test
