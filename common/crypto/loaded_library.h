#pragma once

#include <string>
#include <utility>

#include "common/status/status.h"

namespace psd {

/// A library of the system that is loaded when something first needs it, and never given back: who does not
/// use it has not its memory. Owned by one thread while functions are looked up.
class LoadedLibrary {
 public:
  /// By the name that the system's loader knows, as "libcrypto.so.3"; `package` is where Debian has it.
  LoadedLibrary(const char* name, const char* package);

  template <class Function>
  void find(const char* name, Function*& into) {
    into = reinterpret_cast<Function*>(lookUp(name));
  }
  /// Whether the library and all functions were there.
  const Status& status() const { return status_; }

 private:
  void* lookUp(const char* name);

  const char* name_;
  void* handle_;
  Status status_;
};

}  // namespace psd
