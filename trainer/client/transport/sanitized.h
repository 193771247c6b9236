#pragma once

#include "common/status/status.h"
#include "common/text/text.h"
#include "common/wire/convert.h"

namespace psd {

/// A daemon's error text made safe to print. Pure.
inline Error sanitized(const Error& error) { return {error.code, printable(error.message, 500)}; }
inline Status sanitized(const Status& status) {
  return status.ok() ? status : Status(sanitized(status.error()));
}

}  // namespace psd
