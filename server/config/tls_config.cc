#include "server/config/tls_config.h"

namespace psd {

TlsConfig readTls(ConfigReader in) {
  TlsConfig tls;
  const auto required = [&in](const Key& key, std::string& path, std::string_view what) {
    in.path(key, path, {{"minLength", 1}});
    const std::string message = "is needed: " + std::string(what) + ", a file in PEM format";
    if (path.empty()) in.fail(key.name, message);
    in.require(key.name, message);
  };
  required(
      {"certificate", "Path of the daemon's certificate, followed by those of intermediate authorities."},
      tls.certificate, "the daemon's certificate, and after it those of authorities in between");
  required({"key", "Path of the certificate's private key, without a passphrase."}, tls.key,
           "the certificate's private key");
  in.path({"client_ca",
           "Path of the authorities that may sign clients' certificates. Empty: clients are asked for none."},
          tls.clientCa);
  in.boolean({"require_client", "Refuse clients without a certificate. Needs `client_ca`."},
             tls.requireClient);
  if (tls.requireClient && tls.clientCa.empty()) {
    in.fail("require_client", "needs client_ca: the authorities that may sign clients' certificates");
  }
  return tls;
}

}  // namespace psd
