#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <kj/async.h>
#include <nlohmann/json.hpp>

#include "common/status/status.h"
#include "common/tls/tls_context.h"
#include "server/http/caller.h"
#include "server/status/daemon_event.h"
#include "server/status/daemon_row.h"
#include "server/status/daemon_status.h"

namespace psd {

/// An administrator's action, invoked by POST; returns a human-readable line. `arguments`: the request's
/// body, an object; `by`: the caller. Called on the control loop; the action completes even if the caller
/// disconnects.
using HttpAction = std::function<kj::Promise<Result<std::string>>(const nlohmann::ordered_json& arguments,
                                                                  const std::string& by)>;

/// Callbacks of the HTTP side into the daemon, on the control loop.
struct HttpHooks {
  std::function<DaemonStatus()> status;
  std::function<std::string()> reports;  ///< JSON: {rank: {name: [[time, step, value] …]}}
  std::function<DaemonEvents()> events;
  /// The effective configuration, and which of its keys are changed from the default.
  std::function<nlohmann::ordered_json()> config;
  /// All daemons that serve the model, as last polled, and this one from its status; null: it is alone.
  std::function<DaemonRows(const DaemonStatus& status)> daemons;
  /// All daemons that serve the model, after polling each of them or waiting for its timeout.
  std::function<kj::Promise<DaemonRows>()> polledDaemons;
  /// For occasional callers: resolves once cachedDaemons() has answers from the last few seconds; daemons
  /// that were unreachable before are not waited for. cachedDaemons() is daemons() without polling.
  std::function<kj::Promise<void>()> whenDaemonsCached;
  std::function<DaemonRows(const DaemonStatus& status)> cachedDaemons;
  HttpAccessOf accessOf;
  /// Reserves memory for an answer of `bytes` until the result is destroyed; null if the limit is reached.
  std::function<std::shared_ptr<const void>(uint64_t bytes)> reserve;
  /// The current TLS context of tls:// addresses; null once the daemon ends.
  std::function<std::shared_ptr<const TlsContext>()> tls;
  /// Counts and logs a connection whose TLS handshake failed.
  std::function<void(const std::string& why)> handshakeRefused;
  std::map<std::string, HttpAction> actions;  ///< by name: "reload" is POST /api/reload
};

}  // namespace psd
