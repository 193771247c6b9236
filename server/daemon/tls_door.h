#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include <kj/async.h>

#include "common/os/socket.h"
#include "common/tls/tls_context.h"
#include "server/config/tls_config.h"
#include "server/loop/event_loop.h"
#include "server/rpc/connection.h"

namespace psd {

/// Lets peers in that speak TLS, once they have shaken hands. Thread-safe; outlives the loops.
class TlsDoor {
 public:
  /// Reads the files. Null without `config`.
  static Result<std::shared_ptr<const TlsContext>> read(const std::optional<TlsConfig>& config);

  /// From now on peers are met with these files; those that are in stay.
  void adopt(std::shared_ptr<const TlsContext> context);

  /// The files as they were read last; null: there are none.
  std::shared_ptr<const TlsContext> context() const;

  /// Shakes hands on the loop, within limits.login_timeout_ms. Null: the peer is refused, logged and no
  /// longer counted as a connection.
  kj::Promise<kj::Maybe<Entrant>> meet(EventLoop& loop, AcceptedSocket accepted) const;

 private:
  mutable std::mutex mutex_;                   // guards what follows
  std::shared_ptr<const TlsContext> context_;  // null: there is no address for it
};

}  // namespace psd
