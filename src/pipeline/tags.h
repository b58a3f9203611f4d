// Tags of the messages of a pipeline (see Ranks::send).
#pragma once

namespace tandem {

inline constexpr int kActivationsTag = 20;  // to the next stage
inline constexpr int kTakenTag =
    21;  // to the stage before: one message of activations has been taken, and times
inline constexpr int kCommandTag = 22;  // from rank 0: what to do
inline constexpr int kLogitsTag = 23;   // from the last stage to rank 0

}  // namespace tandem
