#pragma once

#include <cstdint>
#include <string>

namespace psd {

/// This machine's name, for logs and status.
std::string hostName();

/// Resident memory of this process, in bytes; 0 if unknown.
uint64_t residentBytes();

}  // namespace psd
