#pragma once

#include <string>

#include "common/status/status.h"

namespace psd {

/// `psd token new`: prints a token, which nothing keeps, to standard output, and its line for a token file to
/// standard error; or adds that line to `file`, where it is not empty, and makes the file where it is not
/// there.
Status newToken(const std::string& name, const std::string& role, const std::string& file);

}  // namespace psd
