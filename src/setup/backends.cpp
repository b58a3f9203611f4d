#include "setup/backends.h"

#include "ggml-cuda/backend.h"
#include "setup/setup.h"

namespace tandem {
namespace {

Backend cpu_backend(const DeviceOptions& options) {
  return {"CPU", [options] {
            FoundDevices found;
            found.devices.push_back(make_cpu(options));
            return found;
          }};
}

}  // namespace

Registry backends(const DeviceOptions& options) {
  return Registry({cpu_backend(options), cuda::backend()});
}

}  // namespace tandem
