#pragma once

#include <array>

#include "test/fuzz/fuzz_target.h"

namespace psd::fuzz {

extern const FuzzTarget kConfigTarget, kMessagesTarget, kCodecTarget, kCheckpointTarget, kLogTarget,
    kSafetensorsTarget, kIdxTarget, kColumnsTarget, kStatusTarget, kPlanTarget, kEtcdTarget, kMapTarget,
    kSharedTarget, kPatchTarget, kSparseTarget;

/// Every reader that is fuzzed. To add one, add its file, and a line here and in CMakeLists.txt.
inline const std::array kFuzzTargets = {
    &kConfigTarget,      &kMessagesTarget, &kCodecTarget,   &kCheckpointTarget, &kLogTarget,
    &kSafetensorsTarget, &kIdxTarget,      &kColumnsTarget, &kStatusTarget,     &kPlanTarget,
    &kEtcdTarget,        &kMapTarget,      &kSharedTarget,  &kPatchTarget,      &kSparseTarget};

}  // namespace psd::fuzz
