#pragma once

#include <string>
#include <vector>

namespace psd {

/// The addresses at which each of several daemons is reached, by partition. Of one daemon the first that
/// answers counts.
using DaemonPlaces = std::vector<std::vector<std::string>>;

}  // namespace psd
