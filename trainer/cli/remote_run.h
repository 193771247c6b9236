#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/status/status.h"
#include "trainer/cli/command.h"
#include "trainer/client/api/client.h"
#include "trainer/model/model.h"

namespace psd {

/// A run whose passes an executor computes. Owned by one thread; the members are destroyed in reverse order.
struct RemoteRun {
  std::shared_ptr<void> connection;  ///< keeps the connection open for the members below
  std::unique_ptr<Model> model;      ///< computes at the executor
  std::unique_ptr<Client> client;    ///< of the executor's daemon
};

/// Connects to the executor that --execute names. Errors name the flag. `onEvent` is called on disconnects
/// and reconnects.
Result<RemoteRun> openRemoteRun(const TrainCommand& command,
                                const std::function<void(const ClientEvent&)>& onEvent);

}  // namespace psd
