#include "engine/chat_prompt.h"

namespace tandem {

std::vector<int32_t> chat_prompt(const Model& model, const ChatTemplate& chat_template,
                                 const nlohmann::ordered_json& messages) {
  const ModelTemplate own = read_model_template(model.file());
  RenderOptions render;
  render.bos_token = own.bos_token;
  render.eos_token = own.eos_token;
  const MarkedPrompt prompt = chat_template.render_marked(messages, render);
  const Vocab& vocab = model.vocab();
  std::vector<int32_t> ids;
  if (vocab.add_bos() && !prompt.text.starts_with(own.bos_token)) ids.push_back(vocab.special().bos);
  TokenizeOptions how;
  how.add_special = false;
  how.plain = prompt.user;
  how.at_start = ids.empty() || vocab.restarts_text(ids.back());
  const std::vector<int32_t> rest = vocab.tokenize(prompt.text, how);
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

}  // namespace tandem
