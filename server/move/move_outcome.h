#pragma once

#include <cstdint>

namespace psd {

/// What the lead of the daemons that had a model says of a move.
enum class MoveOutcome : uint8_t {
  unknown,   ///< it is another process than the one that gave the model
  underWay,  ///< it may come to count
  stays,     ///< it was given up, for ever
  counts,    ///< the model has moved
};

}  // namespace psd
