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

/// Something that an administrator may have done by POST; gives a line for people. `arguments`: the request's
/// body, an object; `by`: the caller. Called on the control loop; the action is finished even if the caller
/// hangs up.
using HttpAction = std::function<kj::Promise<Result<std::string>>(const nlohmann::ordered_json& arguments,
                                                                  const std::string& by)>;

/// What the HTTP side asks of the daemon, on the control loop.
struct HttpHooks {
  std::function<DaemonStatus()> status;
  std::function<std::string()> reports;  ///< JSON: {rank: {name: [[time, step, value] …]}}
  std::function<DaemonEvents()> events;
  /// All daemons that serve the model, as they were seen last, and this one by its status; null: it is
  /// alone.
  std::function<DaemonRows(const DaemonStatus& status)> daemons;
  /// All daemons that serve the model, once each has been asked just now, or had time to answer.
  std::function<kj::Promise<DaemonRows>()> daemonsAsked;
  /// For who comes now and then: resolves once daemonsSeen() tells what they said in the last seconds; who
  /// was away before is not waited for. daemonsSeen() is daemons(), which has nobody asked.
  std::function<kj::Promise<void>()> whenDaemonsSeen;
  std::function<DaemonRows(const DaemonStatus& status)> daemonsSeen;
  HttpAccessOf accessOf;
  /// Reserves memory for an answer of `bytes` bytes until the result is destroyed; null: the limit is
  /// reached.
  std::function<std::shared_ptr<const void>(uint64_t bytes)> roomFor;
  /// What tls:// addresses speak TLS with, as of now; null: nothing any more.
  std::function<std::shared_ptr<const TlsContext>()> tls;
  /// Counts and logs a connection that did not come to a TLS handshake.
  std::function<void(const std::string& why)> handshakeRefused;
  std::map<std::string, HttpAction> actions;  ///< by name: "reload" is POST /api/reload
};

}  // namespace psd
