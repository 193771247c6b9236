#pragma once

#include <chrono>
#include <string>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"

namespace psd {

/// The operator's calls to a running daemon. They block, for at most `timeout`, and must not be called on a
/// thread that runs an event loop. Errors name the address: unauthenticated where the daemon does not know
/// the caller, forbidden where its role does not do.
Result<std::string> fetchStatusJson(const Address& address, std::chrono::milliseconds timeout,
                                    const Credentials& credentials = {});

/// The rows of each embedding table with the most updates.
Result<std::string> fetchHotRowsJson(const Address& address, std::chrono::milliseconds timeout,
                                     const Credentials& credentials = {});

/// Lets the daemon read its configuration again; gives what has changed, for people.
Result<std::string> reloadDaemon(const Address& address, std::chrono::milliseconds timeout,
                                 const Credentials& credentials = {});

/// Asks the daemon to stop, and waits until it has closed the connection: it is gone. An Error also when it
/// could not save what it was to save.
Status stopDaemon(const Address& address, const std::string& reason, std::chrono::milliseconds timeout,
                  const Credentials& credentials = {});

}  // namespace psd
