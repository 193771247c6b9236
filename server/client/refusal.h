#pragma once

#include <string_view>

#include <kj/debug.h>

#include "common/status/status.h"

namespace psd {

/// Prefix of the exception that rejects a call (overloaded) whose result has no status field.
inline constexpr const char* kRefused = "overloaded: ";

/// Throws that exception.
inline void throwRefusal(const Error& error) {
  kj::throwFatalException(kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__,
                                        kj::str(kRefused, error.message.c_str())));
}

}  // namespace psd
