#pragma once

#include <string_view>

#include <kj/debug.h>

#include "common/status/status.h"

namespace psd {

/// How the exception begins with which a call is refused (overloaded) whose answer has no status.
inline constexpr const char* kRefused = "overloaded: ";

/// Refuses such a call.
inline void throwRefusal(const Error& error) {
  kj::throwFatalException(kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__,
                                        kj::str(kRefused, error.message.c_str())));
}

}  // namespace psd
