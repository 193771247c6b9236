#pragma once

#include <string>

#include "common/config/object_reader.h"

namespace psd {

/// How a daemon shows who it is over TLS, and whom it asks; files in PEM format. A value type.
struct TlsConfig {
  std::string certificate, key;
  std::string clientCa;        ///< who may sign clients' certificates; empty: clients are not asked for one
  bool requireClient = false;  ///< a client without a certificate is refused
};

/// Reads the key `tls`. Problems go to the reader; the files are not read.
TlsConfig readTls(ObjectReader in);

}  // namespace psd
