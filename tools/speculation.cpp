#include "tools/speculation.h"

#include <algorithm>

#include "base/error.h"
#include "engine/model_drafter.h"
#include "speculate/ngram_drafter.h"
#include "tools/hub/model_path.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

using Kind = SpeculationOptions::Kind;

constexpr int64_t kMaxGuesses = 64;
constexpr int64_t kDraftContext = 16384;  // tokens, unless the user says

Kind parse_kind(const std::string& value) {
  if (value == "none") return Kind::none;
  if (value == "ngram") return Kind::ngram;
  if (value == "model") return Kind::model;
  if (value == "mtp") return Kind::mtp;
  throw_error(ErrorCode::usage, "--spec: found {}, needed none, ngram, mtp or model", printable(value));
}

// Of the draft model, or of the MTP layer: the devices and limits of the other one, and a placement of its own.
EngineOptions draft_options(const SpeculationOptions& o, const EngineOptions& engine) {
  EngineOptions draft;
  draft.devices = engine.devices;
  if (o.chosen() == Kind::mtp) {
    draft.model = engine.model;
    draft.model.part = ModelPart::mtp;
    draft.model.open.mmap = true;  // a few of the weights, which are in memory anyway
    draft.model.open.mlock = false;
    draft.context.keeps_hidden = true;
    draft.context.k_dtype =
        kv_row_dtype(engine.context.k_dtype);  // the layer is small, and its texts are cut back often
    draft.context.v_dtype = kv_row_dtype(engine.context.v_dtype);
    draft.context.kv_rotate = engine.context.kv_rotate;
  } else {
    draft.model.path = o.model;
    draft.model.open = engine.model.open;
  }
  draft.offload.budgets = engine.offload.budgets;
  draft.offload.n_gpu_layers = o.n_gpu_layers;
  draft.offload.huge_pages = o.chosen() == Kind::mtp ? Toggle::off : engine.offload.huge_pages;
  draft.offload.pin = o.chosen() == Kind::mtp ? Toggle::off : engine.offload.pin;  // MTP: mapped a second time
  draft.context.n_ctx = o.n_ctx.value_or(engine.context.n_ctx_given ? engine.context.n_ctx : 0);
  draft.context.n_ctx_given = o.n_ctx || engine.context.n_ctx_given;
  draft.context.max_ctx = kDraftContext;
  draft.context.n_ubatch = engine.context.n_ubatch;
  draft.oom_ladder = engine.oom_ladder;
  return draft;
}

}  // namespace

void add_speculation_options(CLI::App& app, SpeculationOptions& o) {
  const char* group = "Speculation";
  choice(app, "--spec", "none|ngram|mtp|model",
         "check guesses of the next tokens in one step: ngram guesses from the text so far, mtp by the "
         "model's own MTP "
         "layer, model with -md",
         "none, with -md model", [&o](const std::string& value) { o.kind = parse_kind(value); })
      .group(group);
  text(app, "--model-draft", o.model, "FILE", "smaller model with the same vocabulary that makes the guesses")
      .group(group);
  integer(app, "--draft-max,--draft,--draft-n", o.n_max, 1,
          "maximum guesses in a step; fewer are made where they do not pay")
      .group(group);
  choice(app, "--gpu-layers-draft,--n-gpu-layers-draft", "N",
         "layers of the draft model, or of the MTP layer, on GPUs", "automatic",
         [&o](const std::string& value) {
           o.n_gpu_layers = parse_integer("--gpu-layers-draft", value, 0, INT32_MAX);
         })
      .group(group);
  choice(app, "--ctx-size-draft", "N", "context of the draft model; texts beyond it have no guesses",
         "-c, or 16384 at most",
         [&o](const std::string& value) { o.n_ctx = parse_integer("--ctx-size-draft", value, 1, INT32_MAX); })
      .group(group);
}

void prepare_speculation(SpeculationOptions& o, EngineOptions& engine) {
  const Kind kind = o.chosen();
  if (kind == Kind::model && o.model.empty())
    throw_error(ErrorCode::usage, "--spec model needs a draft model: name it with -md");
  if (kind != Kind::model && !o.model.empty())
    throw_error(ErrorCode::usage, "-md names a draft model that --spec does not use: leave one out");
  if (o.n_max > kMaxGuesses)
    throw_error(ErrorCode::usage, "--draft-max: found {}, needed at most {}", o.n_max, kMaxGuesses);
  if (kind == Kind::none) return;
  if (kind == Kind::model) o.model = model_path(o.model, {});
  engine.context.n_draft = o.n_max;
  engine.context.keeps_hidden = kind == Kind::mtp;
}

TextSpeculation::TextSpeculation(const SpeculationOptions& o, const EngineOptions& engine,
                                 const std::vector<std::unique_ptr<Device>>& devices, const Model& model) {
  const Kind kind = o.chosen();
  if (kind == Kind::none) return;
  std::unique_ptr<Drafter> drafter;
  if (kind == Kind::ngram) {
    drafter = std::make_unique<NgramDrafter>();
  } else {
    EngineOptions draft = draft_options(o, engine);
    draft_ = load_model(draft);
    if (kind == Kind::model) check_same_vocabulary(*draft_, model);
    measure_speeds(draft, devices, *draft_);
    session_ = std::make_unique<Session>(*draft_, pointers(devices), draft);
    if (kind == Kind::model) {
      drafter = std::make_unique<ModelDrafter>(*session_, model.hparams().n_vocab);
    } else {
      auto mtp = std::make_unique<MtpDrafter>(*session_);
      mtp_ = mtp.get();
      drafter = std::move(mtp);
    }
  }
  speculation_ = std::make_unique<Speculation>(std::move(drafter), o.n_max);
}

void TextSpeculation::watch(Session& session) {
  if (!mtp_) return;
  session.on_hidden([mtp = mtp_](int64_t first, std::span<const int32_t> tokens,
                                 std::span<const float> hidden) { mtp->add_step(first, tokens, hidden); });
}

TextSpeculation::~TextSpeculation() = default;

std::string speculation_text(const SpeculationStats& s, double seconds) {
  if (s.n_checked == 0) return "";
  const double plain = seconds - s.lost_seconds;
  return format("speculation: {} of {} guesses right, {:.2f}x as fast", s.n_right, s.n_checked,
                seconds > 0 ? std::max(0.0, plain / seconds) : 1.0);
}

}  // namespace tandem::tools
