#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"
#include "common/types/daemon_places.h"
#include "common/types/ids.h"
#include "server/checkpoint/whole.h"
#include "server/rpc/live_model.h"

namespace psd {

/// The operator's calls to a running daemon. They block, for at most `timeout`, and must not be called on a
/// thread that runs an event loop. Errors name the address: unauthenticated where the daemon does not know
/// the caller, forbidden where its role does not do.
Result<std::string> fetchStatusJson(const Address& address, std::chrono::milliseconds timeout,
                                    const Credentials& credentials = {});

/// The addresses of each daemon that serves the model together with this one, by partition, this one among
/// them; empty where this one serves its model alone.
Result<DaemonPlaces> fetchDaemons(const Address& address, std::chrono::milliseconds timeout,
                                  const Credentials& credentials);

/// The rows of each embedding table with the most updates.
Result<std::string> fetchHotRowsJson(const Address& address, std::chrono::milliseconds timeout,
                                     const Credentials& credentials = {});

/// Lets the daemon read its configuration again; gives what has changed, for people.
Result<std::string> reloadDaemon(const Address& address, std::chrono::milliseconds timeout,
                                 const Credentials& credentials = {});

/// Lets the daemon take a checkpoint; gives its path.
Result<std::string> takeCheckpoint(const Address& address, std::chrono::milliseconds timeout,
                                   const Credentials& credentials);

/// The daemon's newest checkpoint.
Result<NewestPart> fetchNewestPart(const Address& address, std::chrono::milliseconds timeout,
                                   const Credentials& credentials);

/// Lets the daemon name a checkpoint of the whole model, and keep its part.
Status keepWhole(const Address& address, const WholeCheckpoint& whole, std::chrono::milliseconds timeout,
                 const Credentials& credentials);

/// Ends the session of the rank's trainer; gives who that was, for people.
Result<std::string> removeTrainer(const Address& address, Rank rank, std::chrono::milliseconds timeout,
                                  const Credentials& credentials);

/// Changes one key, "optimizer.lr=0.05"; gives what has changed, for people.
Result<std::string> setKey(const Address& address, const std::string& assignment,
                           std::chrono::milliseconds timeout, const Credentials& credentials);

/// Whether setKey() of that would be taken, or reloadDaemon() where it is empty; nothing changes. A daemon of
/// a version that cannot tell takes it as far as is known.
Status checkChange(const Address& address, const std::string& assignment, std::chrono::milliseconds timeout,
                   const Credentials& credentials);

/// Lets the daemon's standby take its place. notReady: there is none in sync, or it could not in time.
Status switchOver(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials);

/// Lets a daemon that waits for a dead primary take its place, whatever is lost.
Status recoverDaemon(const Address& address, std::chrono::milliseconds timeout,
                     const Credentials& credentials);

/// What happened, as far as the daemon still has it; DaemonEvents as JSON.
Result<std::string> fetchEventsJson(const Address& address, std::chrono::milliseconds timeout,
                                    const Credentials& credentials);

/// Follows the daemon's events, from those that it keeps on: with each batch, as JSON, it calls `tell`, which
/// gives the number of the newest event that it was told of, or an Error that ends it. Else the connection's
/// end does. `timeout`: to connect.
Status followEvents(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials,
                    const std::function<Result<uint64_t>(const std::string& json)>& tell);

/// Pulls a running daemon's parameters, each shard as its policy promises.
Result<LiveModel> fetchModel(const Address& address, std::chrono::milliseconds timeout,
                             const Credentials& credentials);

/// Asks the daemon to stop, and waits until it has closed the connection: it is gone. An Error also when it
/// could not save what it was to save.
Status stopDaemon(const Address& address, const std::string& reason, std::chrono::milliseconds timeout,
                  const Credentials& credentials = {});

}  // namespace psd
