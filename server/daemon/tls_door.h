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

/// Lets peers in that speak TLS, once they have shaken hands. Thread-safe; outlives the loops.
class TlsDoor {
 public:
  struct File {
    std::string path;
    Sha256 content;
  };
  /// What was read of the files.
  struct Files {
    std::shared_ptr<const TlsContext> context;  ///< null: there is no `tls`
    std::map<std::string, File> read;           ///< by the key that names each
  };
  static Result<Files> read(const std::optional<TlsConfig>& config);

  /// From now on peers are met with these files; those that are in stay. Gives, for the log, which files hold
  /// something else than before: "tls.certificate: read anew, …"; empty when none does.
  std::string adopt(Files files);

  /// The files as they were read last; null: there are none.
  std::shared_ptr<const TlsContext> context() const;

  /// Shakes hands on the loop, within limits.login_timeout_ms. Null: the peer is refused, logged and no
  /// longer counted as a connection.
  kj::Promise<kj::Maybe<Entrant>> meet(EventLoop& loop, AcceptedSocket accepted) const;

 private:
  mutable std::mutex mutex_;  // guards what follows
  Files files_;               // no context: there is no address for it
};

}  // namespace psd
