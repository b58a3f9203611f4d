#include "tools/chat/engine.h"

#include <filesystem>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "tools/chat/choose_template.h"
#include "tools/chat/loading.h"
#include "tools/hub/model_path.h"
#include "tools/options/setting_flags.h"
#include "tools/setup.h"

namespace tandem::tools {

ChatEngine::ChatEngine(ChatEngineOptions options)
    : options_(std::move(options)), devices_(make_devices(options_.engine)) {
  load_model_and_template(options_.engine.model.path);
  make_conversation(options_.conversation, {});
}
ChatEngine::~ChatEngine() = default;

// Also of a model for /model, when nothing can be downloaded any more.
std::string ChatEngine::path_of(const std::string& model) const {
  if (!options_.confined) return model_path(model, {});
  try {
    return model_path(model, {.offline = true});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;
    const std::string name = printable(model, 300);
    throw_error(ErrorCode::io,
                "{}: not downloaded, and in the sandbox there is no network: run 'tandem pull {}' first",
                name, name);
  }
}

void ChatEngine::load_model_and_template(const std::string& path) {
  options_.engine.model.path = path_of(path);
  std::unique_ptr<Model> model = load_model(options_.engine);
  auto chosen = std::make_unique<ChatTemplate>(choose_template(*model, options_.chat_template));
  model_ = std::move(model);
  template_ = std::move(chosen);
}

// Another model of the same conversation may have other experts, or none.
void ChatEngine::read_expert_stats() {
  const bool is_first = !speculation_;  // which is made next
  expert_stats_.reset();
  options_.engine.offload.expert_use.reset();
  try {
    expert_stats_ = std::make_unique<ExpertStats>(options_.expert_stats, model_->hparams(), options_.engine);
  } catch (const Error& e) {
    if (is_first || e.code() != ErrorCode::usage) throw;
    log_warning("{}; goes on without", message_of(e));
  }
}

void ChatEngine::save_expert_stats() const {
  if (expert_stats_ && session_) expert_stats_->save(session_->executor());
}

// Another model of the same conversation may have a vocabulary that the draft model does not have.
void ChatEngine::make_speculation() {
  const bool is_first = !speculation_;
  speculation_.reset();
  try {
    speculation_ =
        std::make_unique<TextSpeculation>(options_.speculation, options_.engine, devices_, *model_);
  } catch (const Error& e) {
    if (is_first || e.code() != ErrorCode::usage) throw;
    log_warning("{}; goes on without", message_of(e));
    speculation_ =
        std::make_unique<TextSpeculation>(SpeculationOptions{}, options_.engine, devices_, *model_);
  }
}

void ChatEngine::make_conversation(ConversationOptions options, std::vector<ChatMessage> messages) {
  const bool may_fit = model_->file().n_file_bytes() <= most_to_read_ahead(options_.engine.offload);
  if (options_.read_ahead && options_.engine.model.open.mmap && may_fit)
    read_ahead(*model_, options_.animate);
  read_expert_stats();
  measure_speeds(options_.engine, devices_, *model_);
  make_speculation();
  session_ = std::make_unique<Session>(*model_, pointers(devices_), options_.engine,
                                       explain_on_stderr(options_.explain));
  if (interrupted()) throw Error(ErrorCode::interrupted, "");
  speculation_->watch(*session_);
  if (options_.store) session_->keep_in(*options_.store);
  options.speculation = speculation_->get();
  conversation_ = std::make_unique<Conversation>(*session_, *template_, std::move(options));
  conversation_->adopt(std::move(messages));
}

void ChatEngine::change_model(const std::string& path) {
  try {
    save_expert_stats();
  } catch (const Error& e) {
    log_warning("{}; goes on without", message_of(e));
  }
  const std::string old_path = options_.engine.model.path;
  std::unique_ptr<Model> old_model = std::move(model_);
  std::unique_ptr<ChatTemplate> old_template = std::move(template_);
  const ConversationOptions how = conversation_->options();
  const std::vector<ChatMessage> messages = conversation_->messages();
  const auto take_back = [&] {
    options_.engine.model.path = old_path;
    model_ = std::move(old_model);
    template_ = std::move(old_template);
  };
  try {
    load_model_and_template(path);
  } catch (...) {
    take_back();
    throw;
  }
  conversation_.reset();  // its memory is needed
  session_.reset();
  try {
    make_conversation(how, messages);
  } catch (...) {
    conversation_.reset();
    session_.reset();
    take_back();
    make_conversation(how, messages);
    throw;
  }
}

std::string ChatEngine::devices() const {
  return device_names(devices_);
}

bool ChatEngine::is_model_file(const std::string& path) const {
  const GgufFile& file = model_->file();
  for (size_t part = 0; part < file.n_parts(); ++part) {
    std::error_code no_such_file;
    if (std::filesystem::equivalent(path, file.part_path(static_cast<int>(part)), no_such_file)) return true;
  }
  return false;
}

}  // namespace tandem::tools
