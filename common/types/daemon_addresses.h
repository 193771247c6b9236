#pragma once

#include <string>
#include <vector>

namespace psd {

/// The addresses of each of several daemons, by partition. The first address of a daemon that answers is
/// used.
using DaemonAddresses = std::vector<std::vector<std::string>>;

}  // namespace psd
