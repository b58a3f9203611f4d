// The options object of the C library.
#pragma once

#include <string>

#include "capi/tandem.h"
#include "engine/conversation.h"
#include "engine/options.h"
#include "kv/block_store.h"

struct tandem_options {
  tandem::EngineOptions engine;
  tandem::SamplerParams sampling;
  tandem::GenerateOptions generation;
  std::string chat_template;
  bool think = true;
  std::string kv_store;  // a folder; empty: none
  uint64_t kv_store_bytes = tandem::BlockStore::kDefaultBytes;
};

namespace tandem::capi {

// What a NULL stands for.
const tandem_options& defaults();
inline const tandem_options& given(const tandem_options* options) {
  return options == nullptr ? defaults() : *options;
}
ConversationOptions conversation_options(const tandem_options& options);

}  // namespace tandem::capi
