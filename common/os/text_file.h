#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/os/env.h"

namespace psd {

/// Reads a whole file. ErrorCode::io also if it has more than `bytesMax` bytes; `what` ("a configuration")
/// names the kind of file in the error.
Result<std::string> readText(Env& env, const std::string& path, uint64_t bytesMax, std::string_view what);

/// Text version of writeFileAtomically().
Status writeTextAtomically(Env& env, const std::string& path, std::string_view text);

}  // namespace psd
