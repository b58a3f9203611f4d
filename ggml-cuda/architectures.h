// Which GPUs a build has code for.
#pragma once

#include <algorithm>
#include <string_view>

namespace tandem::cuda {

// Whether architectures as CMake names them ("80-real,90") give code for a GPU. Machine code ("80-real") runs on later
// minors of its generation; PTX ("80-virtual") is translated for every newer GPU; "90" is both. Code of an architecture
// with a letter ("90a-real") runs on no other. A name that is no number ("native") is taken to mean every GPU.
constexpr bool has_code_for(std::string_view archs, int compute_capability) {
  while (!archs.empty()) {
    const std::string_view arch = archs.substr(0, archs.find(','));
    archs.remove_prefix(std::min(arch.size() + 1, archs.size()));
    int built = 0;
    size_t n_digits = 0;
    for (; n_digits < arch.size() && arch[n_digits] >= '0' && arch[n_digits] <= '9'; ++n_digits)
      built = 10 * built + (arch[n_digits] - '0');
    if (n_digits == 0) return true;
    const bool has_letter = n_digits < arch.size() && arch[n_digits] != '-';
    const bool has_ptx = !arch.ends_with("real");
    if (built == compute_capability) return true;
    if (built > compute_capability || has_letter) continue;
    if (has_ptx || built / 10 == compute_capability / 10) return true;
  }
  return false;
}

}  // namespace tandem::cuda
