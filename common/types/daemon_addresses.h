#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace psd {

/// The addresses of each of several daemons, by partition. The first address of a daemon that answers is
/// used.
using DaemonAddresses = std::vector<std::vector<std::string>>;

/// The addresses to use once a model has moved from `left`, one of `used`, to `there`: these in place of
/// `left`, before the others.
template <class Address>
std::vector<Address> addressesAfterMove(const std::vector<Address>& there, const Address& left,
                                        const std::vector<Address>& used) {
  std::vector<Address> addresses;
  const auto add = [&addresses](const Address& each) {
    if (std::ranges::find(addresses, each) == addresses.end()) addresses.push_back(each);
  };
  for (const Address& each : there) add(each);
  for (const Address& each : used) {
    if (each != left) add(each);
  }
  return addresses;
}

}  // namespace psd
