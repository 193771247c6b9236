#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/auth/credentials.h"
#include "common/tls/openssl.h"

namespace psd {

/// PEM files of the accepting end of TLS connections. A value type.
struct TlsServerFiles {
  std::string certificate, key;
  std::string clientCa;        ///< empty: clients are not asked for a certificate
  bool requireClient = false;  ///< a client without a certificate is refused
};

/// One end's TLS configuration, for TLS 1.3 only: its certificate, and whom it trusts. Connections that were
/// made with it outlive it. Immutable; thread-safe.
class TlsContext {
 public:
  /// Reads the files; errors name them. A server's must be regular files, so that rereading them while it
  /// serves never waits for a pipe.
  static Result<std::shared_ptr<const TlsContext>> forServer(const TlsServerFiles& files);
  static Result<std::shared_ptr<const TlsContext>> forClient(const TlsFiles& files);

  ~TlsContext() { openSsl_.SSL_CTX_free(context_); }
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  /// When this end's certificate expires; empty: it has none.
  std::optional<std::chrono::system_clock::time_point> certificateEnds() const;

  const OpenSsl& openSsl() const { return openSsl_; }
  SSL_CTX* get() const { return context_; }

 private:
  TlsContext(const OpenSsl& openSsl, SSL_CTX* context, bool server)
      : openSsl_(openSsl), context_(context), server_(server) {}
  static Result<std::shared_ptr<TlsContext>> make(bool server);
  /// Sets this end's certificate and key.
  Status use(const std::string& certificate, const std::string& key) const;
  Status trust(const std::string& ca) const;
  Error failed(const std::string& file, const std::string& what) const;

  const OpenSsl& openSsl_;
  SSL_CTX* const context_;
  const bool server_;
};

}  // namespace psd
