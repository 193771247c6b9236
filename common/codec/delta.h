#pragma once

#include <cstdint>
#include <span>

#include "common/codec/codec.h"

namespace psd {

/// Adds the decoded bytes to `values`. Daemon and trainers share this function, so that both have
/// bit-identical results.
inline void addDelta(const Codec& codec, Codec::Bytes bytes, std::span<float> values) {
  codec.restoreResidual(bytes, {.residual = values, .velocity = {}});
}

}  // namespace psd
