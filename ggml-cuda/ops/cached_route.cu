// cached_route: asks for experts on the host, and does not run here.
#include "ggml-cuda/compiled_op.h"

namespace tandem::cuda {

std::string why_not(const Graph&, const CachedRouteOp&) {
  return "it runs on the host";
}

CompiledOpPtr compile(const CompileContext&, const Node&, const CachedRouteOp&) {
  throw_error(ErrorCode::bug, "cached_route runs on the host");
}

}  // namespace tandem::cuda
