#pragma once

#include <string>
#include <utility>

#include "common/status/status.h"

namespace psd {

/// A system library that is loaded on first use and never unloaded, so that programs that do not use it do
/// not pay for its memory. Owned by one thread while functions are looked up.
class LoadedLibrary {
 public:
  /// `name` is that of the system's loader, like "libcrypto.so.3"; `package` is the Debian package.
  LoadedLibrary(const char* name, const char* package);

  template <class Function>
  void find(const char* name, Function*& into) {
    into = reinterpret_cast<Function*>(lookUp(name));
  }
  /// Whether the library and all functions were found.
  const Status& status() const { return status_; }

 private:
  void* lookUp(const char* name);

  const char* name_;
  void* handle_;
  Status status_;
};

}  // namespace psd
