#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"
#include "common/types/daemon_addresses.h"
#include "common/types/ids.h"
#include "server/checkpoint/whole.h"
#include "server/client/live_model.h"
#include "server/publish/version_file.h"

namespace psd {

/// Operator calls to a running daemon. They block for at most `timeout` and must not be called on a thread
/// that runs an event loop. Errors name the address: ErrorCode::unauthenticated if the daemon does not accept
/// the caller, ErrorCode::forbidden if its role is insufficient, ErrorCode::protocolMismatch if the address
/// serves HTTP.
Result<std::string> fetchStatusJson(const Address& address, std::chrono::milliseconds timeout,
                                    const Credentials& credentials = {});

/// The addresses of all daemons that serve the model, by partition, including this one; empty if this one
/// serves the model alone.
Result<DaemonAddresses> fetchDaemons(const Address& address, std::chrono::milliseconds timeout,
                                     const Credentials& credentials);

/// The most frequently updated rows of each embedding table.
Result<std::string> fetchHotRowsJson(const Address& address, std::chrono::milliseconds timeout,
                                     const Credentials& credentials = {});

/// Makes the daemon reload its configuration; returns a human-readable description of the change.
Result<std::string> reloadDaemon(const Address& address, std::chrono::milliseconds timeout,
                                 const Credentials& credentials = {});

/// Makes the daemon write a checkpoint; returns its path.
Result<std::string> takeCheckpoint(const Address& address, std::chrono::milliseconds timeout,
                                   const Credentials& credentials);

/// Makes the daemon publish a version.
Result<VersionInfo> publishVersion(const Address& address, std::chrono::milliseconds timeout,
                                   const Credentials& credentials);
/// Makes the daemon roll its model back to a published version; returns the new version.
Result<VersionInfo> rollBackTo(const Address& address, uint64_t number, std::chrono::milliseconds timeout,
                               const Credentials& credentials);

/// The daemon's newest checkpoint.
Result<NewestPart> fetchNewestPart(const Address& address, std::chrono::milliseconds timeout,
                                   const Credentials& credentials);

/// Makes the daemon record a checkpoint of the whole model and keep its part of it.
Status recordWhole(const Address& address, const WholeCheckpoint& whole, std::chrono::milliseconds timeout,
                   const Credentials& credentials);

/// Ends the session of the trainer with this rank; returns a human-readable description of the trainer.
Result<std::string> removeTrainer(const Address& address, Rank rank, std::chrono::milliseconds timeout,
                                  const Credentials& credentials);

/// Changes one key, "optimizer.lr=0.05"; returns a human-readable description of the change.
Result<std::string> setKey(const Address& address, const std::string& assignment,
                           std::chrono::milliseconds timeout, const Credentials& credentials);

/// What setKey() of `assignment` would change, or reloadDaemon() if it is empty, human-readable; an Error if
/// it would be refused. Changes nothing. ErrorCode::protocolMismatch if the daemon's version lacks this
/// check.
Result<std::string> checkChange(const Address& address, const std::string& assignment,
                                std::chrono::milliseconds timeout, const Credentials& credentials);

/// Promotes the daemon's standby. ErrorCode::notReady if no standby is in sync or the switchover did not
/// finish in time.
Status switchOver(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials);

/// Makes a daemon that waits for a dead primary take over, accepting any data loss.
Status recoverDaemon(const Address& address, std::chrono::milliseconds timeout,
                     const Credentials& credentials);

/// The events that the daemon still holds; DaemonEvents as JSON.
Result<std::string> fetchEventsJson(const Address& address, std::chrono::milliseconds timeout,
                                    const Credentials& credentials);

/// Follows the daemon's events, starting with those it holds: calls `tell` with each batch as JSON. `tell`
/// returns the number of the newest event it received, or an Error to stop. Also returns when the connection
/// ends. `timeout`: for connecting.
Status followEvents(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials,
                    const std::function<Result<uint64_t>(const std::string& json)>& tell);

/// Pulls a running daemon's parameters; consistency within a shard is that of its policy.
Result<LiveModel> fetchModel(const Address& address, std::chrono::milliseconds timeout,
                             const Credentials& credentials);

/// Asks the daemon to stop and waits until it has closed the connection, that is, has ended. Also an Error if
/// it failed to save its state.
Status stopDaemon(const Address& address, const std::string& reason, std::chrono::milliseconds timeout,
                  const Credentials& credentials = {});

}  // namespace psd
