// Client::connect(): creates a client of one daemon, or of several that serve a model together.

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/text/text.h"
#include "trainer/client/attempts.h"
#include "trainer/client/moving_client.h"
#include "trainer/client/other_daemons.h"
#include "trainer/client/partitioned_client.h"
#include "trainer/client/rpc_client.h"

namespace psd {
namespace {

constexpr size_t kMovesMax = 8;  // from one daemon to the next

using Clock = std::chrono::steady_clock;

/// Time until then, at least 1 ms.
std::chrono::milliseconds timeTo(Clock::time_point until) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()),
                  std::chrono::milliseconds(1));
}

Result<std::unique_ptr<RpcClient>> connectToOne(const ClientOptions& options, ClientLock& lock,
                                                const ConnectTimeout& timeout) {
  PSD_ASSIGN_OR_RETURN(auto link, Link::make());
  auto client = std::make_unique<RpcClient>(options, std::move(link), lock);
  PSD_RETURN_IF_ERROR(client->connect(timeout));
  return client;
}

/// Checks that a client that was at `before` may connect to the servers in `options`, which a daemon named.
Status mayGoThere(const ClientOptions& options, const std::string& before) {
  for (const std::string& server : options.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  return checkToken(options, before);
}

/// Connects to a daemon that another daemon named as number `index`.
Result<std::unique_ptr<RpcClient>> connectTo(const ClientOptions& options, ClientLock& lock,
                                             const DaemonIdentity& identity, uint32_t index,
                                             Clock::time_point until) {
  PSD_ASSIGN_OR_RETURN(auto client, connectToOne(options, lock, ConnectTimeout(timeTo(until))));
  const DaemonIdentity& itself = client->identity();
  if (itself.daemons == identity.daemons && itself.index == index) return client;
  return Error{ErrorCode::protocolMismatch,
               fmt::format("this one says that it is daemon {} of {}; all daemons of a model must be "
                           "configured with the same `daemons`, each with its own `index`",
                           itself.index, std::max<size_t>(itself.daemons.size(), 1))};
}

Result<std::unique_ptr<MovableClient>> connectToAll(const ClientOptions& options, ClientLock& lock,
                                                    const RpcClient& first, Clock::time_point until) {
  const DaemonIdentity& identity = first.identity();
  std::vector<PartitionedClient::Daemon> daemons;
  for (uint32_t i = 0; i < identity.daemons.size(); i++) {
    ClientOptions own = options;
    own.servers = identity.daemons[i];
    own.cudaDevice = -1;  // values of several daemons are exchanged in host memory
    // The address that the user gave comes first: it may be a Unix socket, over which memory is shared.
    if (i == identity.index && std::ranges::find(own.servers, first.server()) == own.servers.end()) {
      own.servers.insert(own.servers.begin(), first.server());
    }
    const std::string name =
        fmt::format("daemon {} of {}, {}", i, identity.daemons.size(), joined(own.servers, " or "));
    const auto named = [&name](const Error& error) { return Error{error.code, name + ": " + error.message}; };
    if (options.onEvent) {
      own.onEvent = [tell = options.onEvent, name](const ClientEvent& event) {
        tell({event.what, name + ": " + event.line});
      };
    }
    for (const std::string& server : own.servers) {
      if (const auto address = parseAddress(server); !address.ok()) return named(address.error());
    }
    if (const Status may = checkToken(own, first.server()); !may.ok()) return named(may.error());
    auto client = connectTo(own, lock, identity, i, until);
    if (!client.ok()) return named(client.error());
    daemons.push_back({*std::move(client), name});
  }
  return std::unique_ptr<MovableClient>(
      std::make_unique<PartitionedClient>(std::move(daemons), options.retryTimeout, options.resumable, lock));
}

/// Connects to the daemons that serve the model: `options` names one of them, or one from which it has moved.
/// On return `options` names where the model is.
Result<std::unique_ptr<MovableClient>> connectWhereServed(ClientOptions& options, ClientLock& lock,
                                                          const ConnectTimeout& timeout) {
  const auto until = Clock::now() + timeout.time;
  for (size_t moves = 0;; moves++) {
    PSD_ASSIGN_OR_RETURN(auto client,
                         connectToOne(options, lock, moves == 0 ? timeout : ConnectTimeout(timeTo(until))));
    const DaemonIdentity& identity = client->identity();
    if (identity.movedTo.empty()) {
      if (identity.daemons.size() > 1) return connectToAll(options, lock, *client, until);
      return std::unique_ptr<MovableClient>(std::move(client));
    }
    if (moves == kMovesMax) {
      return Error{ErrorCode::unavailable, client->server() + ": the model has moved too many times"};
    }
    const std::vector<std::string> from = std::exchange(options.servers, identity.movedTo.front());
    PSD_RETURN_IF_ERROR(mayGoThere(options, client->server()));
    if (options.onMove) lock.callBack([&] { options.onMove(from, options.servers); });
  }
}

}  // namespace

Status checkToken(const ClientOptions& options, const std::string& first) {
  if (!first.starts_with("tls://") || tokenInTheClear(options.token, options.servers).empty()) return {};
  return {
      ErrorCode::invalidArgument,
      "the token, sent over TLS so far, would be sent there in the clear: every address in `daemons` must "
      "be tls://, unix:// or of this machine"};
}

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  if (options.servers.empty()) return Error{ErrorCode::invalidArgument, "no server address is given"};
  for (const std::string& server : options.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  const ConnectTimeout timeout(options.connectTimeout);
  ClientOptions own = options;
  own.connectTimeout = timeout.time;
  if (own.incarnation == 0) own.incarnation = drawId();  // one trainer, also across moves
  ClientOptions here = own;
  const auto lock = std::make_shared<ClientLock>(own.keepWaiting);
  const auto connect = [&](ClientOptions& there) {
    const ClientLock::Hold hold(*lock);
    return connectWhereServed(there, *lock, timeout);
  };
  PSD_ASSIGN_OR_RETURN(auto first, connect(here));
  const auto elsewhere = [own, lock = lock.get(),
                          at = std::make_shared<std::vector<std::string>>(here.servers)](
                             const std::vector<std::string>& servers,
                             std::chrono::milliseconds within) -> Result<std::unique_ptr<MovableClient>> {
    ClientOptions there = own;
    there.servers = servers;
    there.connectTimeout = within;
    PSD_RETURN_IF_ERROR(mayGoThere(there, own.servers.front()));
    if (there.onMove) lock->callBack([&] { there.onMove(*at, servers); });
    auto client = connectWhereServed(there, *lock, ConnectTimeout(within));
    if (client.ok()) *at = there.servers;
    return client;
  };
  return std::unique_ptr<Client>(
      std::make_unique<MovingClient>(lock, std::move(first), elsewhere, timeout.time, own.onEvent));
}

}  // namespace psd
