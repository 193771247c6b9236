#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/os/env.h"

namespace psd {

/// A whole file. ErrorCode::io also where it has more than `bytesMax` bytes; `what` ("a configuration") has
/// no more.
Result<std::string> readText(Env& env, const std::string& path, uint64_t bytesMax, std::string_view what);

/// Writes text as writeFileAtomically() writes bytes.
Status writeTextAtomically(Env& env, const std::string& path, std::string_view text);

}  // namespace psd
