#include "engine/long_context.h"

#include <cmath>

#include "base/log.h"
#include "base/setting.h"

namespace tandem {

void warn_of_long_context(const Hparams& h, const RopeOverrides& rope, int64_t n_ctx, int64_t n_sequence) {
  const int64_t n_usable = h.n_ctx_usable();
  if (n_sequence <= n_usable) return;
  const std::string context = setting_text(Setting::n_ctx, n_ctx);
  if (rope.scales()) {  // with another base or frequency nobody knows how far it reaches
    const float scale = rope.freq_scale ? 1 / *rope.freq_scale : rope.scale.value_or(0.0f);
    const auto reach = std::llround(static_cast<double>(h.n_ctx_train) * scale);
    if (rope.freq_base || scale <= 0 || n_sequence <= reach) return;
    log_warning("{}: the {} tokens that the model was trained with, scaled by {:g}, reach {}, and it is likely to fail beyond them",
                context, h.n_ctx_train, scale, reach);
  } else if (h.self_extend.on()) {
    log_warning(
        "{}: with {} and {}, the {} tokens that the model was trained with reach {}, and it is likely to "
        "fail beyond them",
        context, setting_text(Setting::self_extend, h.self_extend.factor),
        setting_text(Setting::self_extend_width, h.self_extend.neighbours), h.n_ctx_train, n_usable);
  } else {
    log_warning("{}: the model was trained with {} tokens, and is likely to fail beyond them", context, n_usable);
  }
}

}  // namespace tandem
