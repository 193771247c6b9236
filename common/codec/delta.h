#pragma once

#include <cstdint>
#include <span>

#include "common/codec/codec.h"

namespace psd {

/// values += what the bytes hold. Daemon and trainers do it alike, so that both have the same bits.
inline void addDelta(const Codec& codec, Codec::Bytes bytes, std::span<float> values) {
  codec.takeBack(bytes, {.residual = values, .velocity = {}});
}

}  // namespace psd
