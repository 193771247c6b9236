#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <kj/async.h>

#include "common/crypto/sha256.h"
#include "common/os/socket.h"
#include "common/tls/tls_context.h"
#include "server/config/tls_config.h"
#include "server/loop/event_loop.h"
#include "server/rpc/connection.h"

namespace psd {

/// Performs the TLS handshake of accepted connections. Thread-safe; outlives the loops.
class TlsAcceptor {
 public:
  struct File {
    std::string path;
    Sha256 content;
  };
  /// The loaded files.
  struct Files {
    std::shared_ptr<const TlsContext> context;  ///< null: there is no `tls`
    std::map<std::string, File> read;           ///< by the key that names each
  };
  static Result<Files> read(const std::optional<TlsConfig>& config);

  /// Uses these files for new connections; existing ones stay. Returns the changes, as changesTo() does.
  std::string adopt(Files files);
  /// Which files have other content than those in use, for the log: "tls.certificate: reloaded, …"; empty:
  /// none.
  std::string changesTo(const Files& files) const;

  /// Logs a warning if the certificate has expired or expires within a week.
  void warnOfExpiry() const;
  /// When the certificate expires, in Unix time; empty: there is no `tls`.
  std::optional<uint64_t> certificateExpiry() const;

  /// The context of the current files; null: there is no `tls`.
  std::shared_ptr<const TlsContext> context() const;

  /// Performs the handshake on the loop, within limits.login_timeout_ms. Null: the peer was refused, which is
  /// logged, and is no longer counted as a connection.
  kj::Promise<kj::Maybe<AcceptedPeer>> meet(EventLoop& loop, AcceptedSocket accepted) const;

 private:
  mutable std::mutex mutex_;  // guards files_
  Files files_;
};

}  // namespace psd
