#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// A whole file with secrets, of at most `bytesMax` bytes; `what` ("a token file") has no more. ErrorCode::io
/// also where group or others may read or write the file, or it belongs to another user than this process's
/// and root. `orPipe`: a pipe will do, and is waited for.
Result<std::string> readPrivateText(const std::string& path, uint64_t bytesMax, std::string_view what,
                                    bool orPipe);

/// Adds a line to such a file, which is made, for its owner alone, where it is not there.
Status appendPrivateLine(const std::string& path, std::string_view line);

}  // namespace psd
