#pragma once

#include <string>

#include "common/config/config_reader.h"

namespace psd {

/// The daemon's certificate for TLS, and which clients need one; files in PEM format. A value type.
struct TlsConfig {
  std::string certificate, key;
  std::string clientCa;        ///< authorities that may sign clients' certificates; empty: none is requested
  bool requireClient = false;  ///< refuse clients without a certificate
};

/// Reads the key `tls`. The files are not read.
TlsConfig readTls(ConfigReader in);

}  // namespace psd
