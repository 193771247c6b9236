#pragma once

#include <string>
#include <vector>

namespace psd {

/// Begins this program anew in this process, as it was begun but at these addresses: nothing of what it holds
/// is left, and its number for the system stays. `pages`: of HTTP; none: there is no page. Ends the process
/// where that cannot be.
/// begunAnew() tells the program of it.
[[noreturn]] void beginAnew(const std::vector<std::string>& addresses, const std::vector<std::string>& pages);

/// Whether this program was begun by beginAnew().
bool begunAnew();

/// The arguments of that: those of before without the ones that name addresses, and then these.
std::vector<std::string> argumentsAnew(const std::vector<std::string>& before,
                                       const std::vector<std::string>& addresses,
                                       const std::vector<std::string>& pages);

}  // namespace psd
