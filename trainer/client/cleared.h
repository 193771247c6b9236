#pragma once

#include "common/status/status.h"
#include "common/text/text.h"
#include "common/wire/convert.h"

namespace psd {

/// A daemon's words, fit to be printed. Pure.
inline Error cleared(const Error& error) { return {error.code, printable(error.message, 500)}; }
inline Status cleared(const Status& status) { return status.ok() ? status : Status(cleared(status.error())); }

}  // namespace psd
