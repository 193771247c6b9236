#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"

namespace psd {

/// Reads a file of at most `bytesMax` bytes. Errors name the file.
Result<std::string> readWholeFile(const std::string& path, uint64_t bytesMax);

}  // namespace psd
