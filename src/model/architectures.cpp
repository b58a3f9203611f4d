#include <string>

#include "base/error.h"
#include "model/architecture.h"

namespace tandem {
namespace {

constexpr ArchitectureEntry kArchitectures[] = {
    {"llama", load_llama},
};

}  // namespace

std::span<const ArchitectureEntry> architectures() { return kArchitectures; }

std::unique_ptr<Architecture> load_architecture(const ModelSource& source) {
  const auto name = source.file.metadata().get<std::string>("general.architecture");
  std::string known;
  for (const ArchitectureEntry& entry : kArchitectures) {
    if (entry.name == name) return entry.load(source);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  source.file.metadata().fail("general.architecture", printable(name), "one of: " + known);
}

}  // namespace tandem
