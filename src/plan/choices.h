// The placements that a planner compares: all that the options leave open (open_choices() of fit.h), and which of them are
// worth their prediction.
#pragma once

#include "plan/fit.h"

namespace tandem {

// Whether the options allow that each layer is divided over all GPUs.
bool may_divide_layers(const FitRequest& request);
// Of an automatic division over GPUs: one GPU only for everything; each layer over all of them only where each has some of
// its heads.
bool is_worth_trying(const FitRequest& request, const Fit& fit);

}  // namespace tandem
