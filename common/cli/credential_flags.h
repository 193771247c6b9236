#pragma once

#include <CLI/CLI.hpp>

#include "common/auth/credentials.h"

namespace psd {

/// Adds the flags for a program's credentials; `flags` outlives the app.
inline void addCredentialFlags(CLI::App& app, CredentialFlags& flags) {
  app.add_option("--token-file", flags.tokenFile,
                 "a file with the token that authenticates to the daemon, readable by its owner only "
                 "[PSD_TOKEN_FILE, else the token itself in PSD_TOKEN]")
      ->type_name("FILE");
  app.add_option(
         "--tls-ca", flags.tlsCa,
         "for tls://: the trusted certificate authorities, as PEM; default: the system's [PSD_TLS_CA]")
      ->type_name("FILE");
  app.add_option("--tls-cert", flags.tlsCertificate,
                 "for tls://: the client certificate, as PEM [PSD_TLS_CERT]")
      ->type_name("FILE");
  app.add_option("--tls-key", flags.tlsKey, "for tls://: the certificate's private key, as PEM [PSD_TLS_KEY]")
      ->type_name("FILE");
}

}  // namespace psd
