// The model object of the C library.
#pragma once

#include <memory>
#include <string>

#include "capi/tandem.h"
#include "engine/model.h"

namespace tandem::capi {

// Shared by the program's handle and the sessions.
struct LoadedModel {
  std::unique_ptr<const Model> model;
  std::string name, description;
  tandem_model_info info{};
};

}  // namespace tandem::capi

struct tandem_model {
  std::shared_ptr<const tandem::capi::LoadedModel> loaded;
};
