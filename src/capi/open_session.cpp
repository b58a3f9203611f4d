#include <algorithm>

#include "base/log.h"
#include "capi/call.h"
#include "capi/session.h"
#include "setup/backends.h"
#include "setup/setup.h"
#include "speculate/ngram_drafter.h"

namespace tandem::capi {
namespace {

// The host, then the GPUs that the options choose.
std::vector<std::unique_ptr<Device>> make_devices(EngineOptions& options) {
  const Registry registry = backends(options.devices);
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(registry.make_host());
  FoundDevices gpus = options.offload.n_gpu_layers == 0 && options.devices.gpus.empty()
                          ? FoundDevices{{}, "n_gpu_layers is 0"}
                          : chosen_gpus(registry, options.devices);
  if (gpus.devices.empty()) {
    log_info("not using a GPU: {}", gpus.why_none);
    options.offload.n_gpu_layers.reset();
  }
  for (auto& gpu : gpus.devices) devices.push_back(std::move(gpu));
  return devices;
}

}  // namespace

OpenSession::OpenSession(std::shared_ptr<const LoadedModel> loaded, const tandem_options& options)
    : loaded_(std::move(loaded)), pieces_(loaded_->model->vocab()) {
  EngineOptions engine = options.engine;
  devices_ = make_devices(engine);
  measure_speeds(engine, devices_, model());
  session_ = std::make_unique<Session>(model(), pointers(devices_), engine);
  if (!options.kv_store.empty()) {
    store_ = std::make_unique<BlockStore>(options.kv_store, options.kv_store_bytes);
    session_->keep_in(*store_);
  }
  const int64_t n_draft = engine.context.n_draft;
  if (n_draft > 0) speculation_ = std::make_unique<Speculation>(std::make_unique<NgramDrafter>(), n_draft);
  set_texts("", "");
}

void OpenSession::start_call() {
  stop();
  interrupted_.store(false, std::memory_order_relaxed);
  result_ = {};
  set_texts("", "");
  pieces_.clear();
}

void OpenSession::begin(const tandem_options& options, std::vector<int32_t> prompt) {
  start_call();
  if (prompt.empty()) throw_error(ErrorCode::usage, "the prompt has no tokens");
  check_ids(model(), prompt);
  if (static_cast<int64_t>(prompt.size()) > session_->n_ctx()) {
    throw_error(ErrorCode::usage, "the prompt has {} tokens and the context holds {} (n_ctx)", prompt.size(),
                session_->n_ctx());
  }
  auto work = std::make_unique<Text>(*session_, options, speculation());
  const std::span<const int32_t> held = session_->tokens();
  const auto n_common =
      std::mismatch(held.begin(), held.end(), prompt.begin(), prompt.end()).second - prompt.begin();
  // The last token is computed in any case, for its logits.
  const int64_t n_held = std::min<int64_t>(n_common, static_cast<int64_t>(prompt.size()) - 1);
  session_->truncate(n_held);
  const int64_t n_reused = session_->load_kept(prompt);
  for (int64_t i = 0; i < n_reused; ++i) work->sampler.accept_prompt(prompt[i]);
  result_.n_reused = n_reused;
  result_.n_loaded = std::max<int64_t>(0, n_reused - n_held);
  result_.seed = work->sampler.seed();
  const auto rest = std::span<const int32_t>(prompt).subspan(static_cast<size_t>(n_reused));
  work->cut_short = !work->work.read(rest, [this](int64_t) { return !interrupted(); });
  take_statistics(work->work.stats());
  work_ = std::move(work);
}

const tandem_piece& OpenSession::next() {
  if (!work_)
    throw_error(ErrorCode::usage, "there is no text to continue: it is complete, or none was begun");
  Generation& generation = work_->work;
  if (work_->cut_short || interrupted()) return last_piece(generation.finish(), StopReason::interrupted);
  if (const auto reason = generation.ended()) return last_piece(generation.finish(), *reason);
  const Continuation::Choice choice = generation.next();
  pieces_.add(choice);
  if (choice.end) return last_piece(choice.text, *choice.end);
  take_statistics(generation.stats());
  append_text(choice.text);
  return pieces_.build(choice.text, TANDEM_PART_TEXT, TANDEM_STOP_NONE);
}

const tandem_piece& OpenSession::last_piece(std::string_view text, StopReason reason) {
  take_statistics(work_->work.stats());
  append_text(text);
  result_.stop = stop_of(reason);
  const tandem_piece& piece = pieces_.build(text, TANDEM_PART_TEXT, result_.stop);
  end_text();
  return piece;
}

void OpenSession::stop() {
  if (!work_) return;
  result_.stop = TANDEM_STOP_INTERRUPTED;
  end_text();
}

void OpenSession::end_text() {
  work_.reset();
  session_->keep();
}

void OpenSession::take_statistics(const GenerateStats& s) {
  result_.n_prompt = s.n_prompt;
  result_.n_generated = s.n_generated;
  result_.n_shifts = s.n_shifts;
  result_.prompt_s = s.prompt_s;
  result_.generate_s = s.generate_s;
  result_.n_guessed = s.speculation.n_checked;
  result_.n_guessed_right = s.speculation.n_right;
}

void OpenSession::set_texts(std::string text, std::string reasoning) {
  text_ = std::move(text);
  reasoning_ = std::move(reasoning);
  publish_texts();
}

void OpenSession::append_text(std::string_view text) {
  text_ += text;
  publish_texts();
}

void OpenSession::publish_texts() {
  result_.text = text_.c_str();
  result_.n_bytes = text_.size();
  result_.reasoning = reasoning_.c_str();
  result_.n_reasoning_bytes = reasoning_.size();
}

}  // namespace tandem::capi
