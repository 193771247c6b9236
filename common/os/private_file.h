#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// Reads a whole file with secrets, of at most `bytesMax` bytes; `what` ("a token file") names the kind of
/// file in the error. ErrorCode::io also if group or others may read or write the file, except for systemd's
/// in CREDENTIALS_DIRECTORY, which the group may read, or if its owner is neither this process's user nor
/// root. `orPipe`: a pipe is accepted, and waited for.
Result<std::string> readPrivateText(const std::string& path, uint64_t bytesMax, std::string_view what,
                                    bool orPipe);

/// Replaces the content of such a file at once; its owner and mode stay.
Status replacePrivateText(const std::string& path, std::string_view text);

/// Appends a line to such a file; a missing file is created, accessible to its owner only.
Status appendPrivateLine(const std::string& path, std::string_view line);

}  // namespace psd
