// ChatEngine: the model of a chat with its session, chat template and conversation. The model can be changed
// for another one, with which the conversation continues.
//
// One thread. Owns the devices. Throws what loading a model, Session, ChatTemplate and Conversation throw.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/conversation.h"
#include "text/chat_template.h"
#include "tools/expert_stats.h"
#include "tools/speculation.h"

namespace tandem::tools {

struct ChatEngineOptions {
  EngineOptions engine;
  ConversationOptions conversation;
  SpeculationOptions speculation;
  std::string chat_template;  // replaces the model's
  std::string expert_stats;   // file of --expert-stats, or nothing
  BlockStore* store = nullptr;  // of computed blocks; outlives the engine. null: none
  bool read_ahead = false;    // into memory, before the first message
  bool animate = true;        // show its progress
  bool explain = false;
  bool confined = false;  // in the sandbox, where no other model can be downloaded
};

class ChatEngine {
 public:
  explicit ChatEngine(ChatEngineOptions options);
  ~ChatEngine();

  const Model& model() const { return *model_; }
  const Session& session() const { return *session_; }
  Conversation& conversation() { return *conversation_; }
  const Conversation& conversation() const { return *conversation_; }
  // "CPU", "CPU and CUDA0".
  std::string devices() const;
  // The model's file, or a part of it.
  bool is_model_file(const std::string& path) const;

  // Continues the conversation with the model in this file. If that fails, all is as before, except that the
  // tokens of the conversation have to be computed again.
  void change_model(const std::string& path);

  // Adds the experts that the model has used to the file of --expert-stats, if there is one. May be called again.
  void save_expert_stats() const;

 private:
  std::string path_of(const std::string& model) const;
  void load_model_and_template(const std::string& path);
  void read_expert_stats();
  void make_speculation();
  void make_conversation(ConversationOptions options, std::vector<ChatMessage> messages);

  ChatEngineOptions options_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<ExpertStats> expert_stats_;  // of the model; null: its experts are not recorded
  std::unique_ptr<TextSpeculation> speculation_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Conversation> conversation_;
};

}  // namespace tandem::tools
