#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"

namespace psd {

/// What a data set's file holds, at most `bytesMax`. An error names the file.
Result<std::string> readWholeFile(const std::string& path, uint64_t bytesMax);

}  // namespace psd
