#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// Reads a whole file with secrets, of at most `bytesMax` bytes; `what` ("a token file") names the kind of
/// file in the error. ErrorCode::io also if group or others may read or write the file, except for systemd's
/// directly in CREDENTIALS_DIRECTORY, which the group may read, or if its owner is neither this process's
/// user nor root. `orPipe`: a pipe is accepted, and waited for.
Result<std::string> readPrivateText(const std::string& path, uint64_t bytesMax, std::string_view what,
                                    bool orPipe);

/// What to do with a file that does not exist: create it, accessible to its owner only.
enum class IfMissing { create, fail };

/// Replaces the text of such a file by what `edit` makes of it, at once and on disk; its owner and mode stay.
/// Waits while another process edits the file.
Status editPrivateText(const std::string& path, uint64_t bytesMax, std::string_view what, IfMissing ifMissing,
                       const std::function<Status(std::string& text)>& edit);

}  // namespace psd
