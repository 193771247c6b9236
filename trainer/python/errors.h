#pragma once

#include <utility>

#include "common/status/status.h"

namespace psd::python {

/// Throws the exception of package `psd` for the error's code. With the GIL.
[[noreturn]] void raise(const Error& error);

inline void check(const Status& status) {
  if (!status.ok()) raise(status.error());
}

/// Returns the value, or throws the error as an exception. With the GIL.
template <class T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.error());
  return std::move(*result);
}

}  // namespace psd::python
