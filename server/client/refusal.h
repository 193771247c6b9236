#pragma once

#include <kj/debug.h>

#include "common/status/status.h"
#include "common/wire/login.h"

namespace psd {

/// Rejects a call (overloaded) whose result has no status field, by an exception with the prefix kRefused.
inline void throwRefusal(const Error& error) {
  kj::throwFatalException(kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__,
                                        kj::str(wire::kRefused, error.message.c_str())));
}

}  // namespace psd
