#pragma once

#include <string>

#include "common/status/status.h"

namespace psd {

/// `psd token new`: prints a new token, which is stored nowhere, to standard output, and its line for a token
/// file to standard error. If `file` is not empty, appends the line to that file instead, and creates it if
/// it does not exist.
Status newToken(const std::string& name, const std::string& role, const std::string& file);

}  // namespace psd
