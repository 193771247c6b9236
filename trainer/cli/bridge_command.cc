#include <atomic>

#include <spdlog/spdlog.h>

#include "common/text/quantity.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/stop_signals.h"

namespace psd {

Status runBridge(const BridgeCommand& command, const Connect& connect) {
  const std::unique_ptr<Env> env = makePosixEnv();
  Bridge bridge(command.options, connect, *env, [](const BridgeExchange& exchange) {
    spdlog::debug("round {}: {} updates exchanged in {}, {} arrived meanwhile", exchange.round.value,
                  exchange.updates, durationText(exchange.seconds), exchange.meanwhile);
  });
  std::atomic<bool> stop{false};
  const StopSignals signals({.onSignal = [&](int) { stop = true; }, .onTimeout = [] {}});
  return bridge.run(stop);
}

}  // namespace psd
