#include "server/config/tls_config.h"

namespace psd {

TlsConfig readTls(ObjectReader in) {
  TlsConfig tls;
  const auto needed = [&in](std::string_view key, std::string_view what) {
    const std::string path = in.text(key, "");
    if (path.empty()) in.fail(key, "is needed: " + std::string(what) + ", a file in PEM format");
    return path;
  };
  tls.certificate =
      needed("certificate", "the daemon's certificate, and after it those of authorities in between");
  tls.key = needed("key", "the certificate's private key");
  tls.clientCa = in.text("client_ca", "");
  tls.requireClient = in.boolean("require_client", false);
  if (tls.requireClient && tls.clientCa.empty()) {
    in.fail("require_client", "needs client_ca: the authorities that may sign clients' certificates");
  }
  return tls;
}

}  // namespace psd
