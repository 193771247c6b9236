#pragma once

#include <cstdint>

namespace psd {

/// How trainers work under a policy that lets them take steps by themselves between two exchanges. What they
/// push then is w_start − w (local SGD), or w̃ − w (EASGD, with the parameters w̃ that they have just pulled),
/// in place of a gradient. A value type.
struct LocalSteps {
  uint64_t period = 0;  ///< steps between two exchanges; 0: none, every gradient is pushed
  double rate = 0;      ///< learning rate of these steps, which are plain SGD
  double alpha = 0;  ///< EASGD: w ← w − alpha · (w − w̃). 0: the next steps begin at what is pulled then

  bool operator==(const LocalSteps&) const = default;
};

}  // namespace psd
