#include "common/tls/openssl.h"

#include <string>

#include "common/crypto/loaded_library.h"
#include "common/crypto/openssl_version.h"

namespace psd {

OpenSsl::OpenSsl() {
  constexpr const char* kPackage = "libssl" PSD_OPENSSL_VERSION;
  LoadedLibrary ssl("libssl.so." PSD_OPENSSL_VERSION, kPackage);
  LoadedLibrary crypto("libcrypto.so." PSD_OPENSSL_VERSION, kPackage);
#define PSD_FIND(name) ssl.find(#name, name);
  PSD_LIBSSL_FUNCTIONS(PSD_FIND)
#undef PSD_FIND
#define PSD_FIND(name) crypto.find(#name, name);
  PSD_LIBCRYPTO_FUNCTIONS(PSD_FIND)
#undef PSD_FIND
  status_ = ssl.status().ok() ? crypto.status() : ssl.status();
}

Result<const OpenSsl*> OpenSsl::load() {
  static const OpenSsl functions;
  if (!functions.status_.ok()) return functions.status_.error();
  return &functions;
}

std::string OpenSsl::takeReason() const {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  return reason == nullptr ? "unknown reason" : reason;
}

}  // namespace psd
