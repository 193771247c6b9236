#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace psd {

/// This machine's name, for logs and status.
std::string hostName();

/// Resident memory of this process, in bytes; 0 if unknown.
uint64_t residentBytes();

/// What this process uses. A value type.
struct ProcessUse {
  double cpuSeconds = 0;        ///< of all threads, in user and system mode
  uint64_t descriptorsMax = 0;  ///< soft limit of the number of open descriptors
  double startTime = 0;         ///< Unix time
};
ProcessUse processUse();

/// The number of open descriptors of a process of this machine, counted one by one; nothing if its folder in
/// /proc cannot be read, as another user's.
std::optional<uint64_t> openDescriptorsOf(uint32_t pid);
/// The number of open descriptors of this process; 0 if unknown.
uint64_t openDescriptors();

}  // namespace psd
