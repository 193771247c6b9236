#pragma once

#include <utility>

#include "common/status/status.h"

namespace psd::python {

/// Throws the exception of the `psd` package that stands for the error's code. With the GIL.
[[noreturn]] void raise(const Error& error);

inline void check(const Status& status) {
  if (!status.ok()) raise(status.error());
}

/// The value, or the error as an exception. With the GIL.
template <class T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.error());
  return std::move(*result);
}

}  // namespace psd::python
