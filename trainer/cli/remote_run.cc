#include "trainer/cli/remote_run.h"

#include <utility>

#include "trainer/executor/remote/remote_client.h"
#include "trainer/executor/remote/remote_model.h"

namespace psd {

Result<RemoteRun> openRemoteRun(const TrainCommand& command,
                                const std::function<void(const ClientEvent&)>& onEvent) {
  const ClientOptions& client = command.common.client;
  auto connected = RemoteSteps::connect({.executor = command.execute,
                                         .tls = client.tls,
                                         .connectTimeout = client.connectTimeout,
                                         .retryTimeout = client.retryTimeout,
                                         .acceptLostRows = client.acceptLostRows,
                                         .onEvent = onEvent});
  if (!connected.ok()) return Error{connected.error().code, "--execute: " + connected.message()};
  const std::shared_ptr<RemoteSteps> steps = *std::move(connected);
  if (const Status parts = checkParts(steps->module(), command.microBatches); !parts.ok()) {
    return Error{parts.error().code, "--micro-batches: " + parts.message()};
  }
  auto model = RemoteModel::make(*steps, command.microBatches);
  if (!model.ok()) return Error{model.error().code, "--execute: " + model.message()};
  return RemoteRun{steps, *std::move(model), std::make_unique<RemoteClient>(*steps)};
}

}  // namespace psd
