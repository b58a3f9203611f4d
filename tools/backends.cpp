#include "tools/backends.h"

#include "ggml-cuda/backend.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

Backend cpu_backend(const ThreadOptions& threads) {
  return {"CPU", [threads] {
            FoundDevices found;
            found.devices.push_back(make_cpu(threads));
            return found;
          }};
}

}  // namespace

Registry backends(const ThreadOptions& threads) {
  return Registry({cpu_backend(threads), cuda::backend()});
}

}  // namespace tandem::tools
