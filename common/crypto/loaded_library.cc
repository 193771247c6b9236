#include "common/crypto/loaded_library.h"

#include <dlfcn.h>

namespace psd {

LoadedLibrary::LoadedLibrary(const char* name, const char* package)
    : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
  if (handle_ != nullptr) return;
  const char* const reason = dlerror();
  status_ = {ErrorCode::unavailable, std::string(name) + " cannot be loaded (" +
                                         (reason ? reason : "no reason") + "); on Debian it is in package " +
                                         package};
}

void* LoadedLibrary::lookUp(const char* name) {
  if (!status_.ok()) return nullptr;
  void* const found = dlsym(handle_, name);
  if (found == nullptr)
    status_ = {ErrorCode::unavailable, std::string(name_) + " lacks the function " + name};
  return found;
}

}  // namespace psd
