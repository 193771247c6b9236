#include "trainer/executor/serve_command.h"

#include <csignal>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/os/env.h"
#include "common/os/freed_memory.h"
#include "common/os/text_file.h"
#include "common/text/text.h"
#include "trainer/executor/executor.h"
#include "trainer/executor/executor_http.h"
#include "trainer/executor/executor_server.h"
#include "trainer/executor/model_devices.h"

namespace psd {
namespace {

constexpr kj::Duration kFaultEvery = 100 * kj::MILLISECONDS;

/// What serving needs, except the sockets.
struct Prepared {
  std::unique_ptr<Executor> executor;
  std::shared_ptr<const TlsContext> tls;  ///< null if the configuration has none
};

Result<Prepared> prepare(const ExecutorConfig& config, const ClientOptions& daemon) {
  PSD_ASSIGN_OR_RETURN(auto model, buildModel(config));
  Prepared prepared;
  PSD_ASSIGN_OR_RETURN(prepared.executor, Executor::make(config, daemon, std::move(model)));
  if (!config.tls) return prepared;
  auto tls = TlsContext::forServer(*config.tls);
  if (!tls.ok()) return Error{tls.error().code, "tls: " + tls.message()};
  prepared.tls = *std::move(tls);
  return prepared;
}

Status writePort(const std::string& path, const std::vector<ListenSockets>& listening) {
  for (const ListenSockets& sockets : listening) {
    if (sockets.address().kind != Address::Kind::tcp) continue;
    const Status written =
        writeTextAtomically(*makePosixEnv(), path, std::to_string(sockets.address().port) + "\n");
    return written.ok() ? written : Status(written.error().code, "--port-file: " + written.message());
  }
  return {ErrorCode::invalidArgument, "--port-file: the executor listens on no tcp:// address"};
}

kj::Promise<void> untilFault(kj::Timer& timer, const ExecutionModel& model) {
  return timer.afterDelay(kFaultEvery).then([&timer, &model]() -> kj::Promise<void> {
    if (model.fault()) return kj::READY_NOW;
    return untilFault(timer, model);
  });
}

/// Serves until SIGTERM, SIGINT, or a fault after which the model cannot compute any more, which is an error.
Status untilEnd(kj::AsyncIoContext& io, const ExecutionModel& model) {
  kj::UnixEventPort& port = io.unixEventPort;
  return port.onSignal(SIGTERM)
      .exclusiveJoin(port.onSignal(SIGINT))
      .then([](const siginfo_t& info) {
        spdlog::info("{}: stopped", info.si_signo == SIGTERM ? "SIGTERM" : "SIGINT");
        return Status();
      })
      .exclusiveJoin(untilFault(io.provider->getTimer(), model).then([&model] {
        const Status fault(ErrorCode::unavailable, *model.fault());
        spdlog::error("{}; this process can compute nothing any more, a new one may", fault.message());
        return fault;
      }))
      .wait(io.waitScope);
}

/// The device of each stage.
std::string devicesText(const ExecutionModel& model) {
  return joined(model.devices(), ",", [](const Device& device) { return device.toString(); });
}

/// The HTTP part of the "ready" log line.
std::string placesText(const std::vector<std::string>& places) {
  return places.empty() ? "" : ", metrics at " + joined(places, " ");
}

}  // namespace

Status checkExecutor(const ExecutorConfig& config) { return prepare(config, {}).status(); }

Status serveExecutor(const ExecutorConfig& config, const ClientOptions& daemon, const std::string& portFile) {
  // Before any other thread is started: a thread that does not block these signals would receive them.
  for (const int signal : {SIGTERM, SIGINT}) kj::UnixEventPort::captureSignal(signal);
  keepFreedMemory();
  auto io = kj::setupAsyncIo();
  std::signal(SIGPIPE, SIG_IGN);
  PSD_ASSIGN_OR_RETURN(const Prepared prepared, prepare(config, daemon));
  std::vector<ListenSockets> listening;
  for (size_t i = 0; i < config.listen.size(); i++) {
    Result<ListenSockets> sockets = listenOn(config.listen[i]);
    if (!sockets.ok()) return {sockets.error().code, fmt::format("listen[{}]: {}", i, sockets.message())};
    listening.push_back(*std::move(sockets));
  }
  auto server = std::make_unique<ExecutorServer>(io, *prepared.executor, std::move(listening), prepared.tls);
  auto http = std::make_unique<ExecutorHttp>(io, *prepared.executor, *server, prepared.tls);
  PSD_RETURN_IF_ERROR(http->start());
  if (!portFile.empty()) PSD_RETURN_IF_ERROR(writePort(portFile, server->listening()));
  spdlog::info(
      "psd-executor " PSD_VERSION
      " ready: listening on {}, pid {}, module {}, device {}, daemon {}, weights {}, {} worker(s) of "
      "{} thread(s){}",
      joined(server->listening(), " ",
             [](const ListenSockets& sockets) { return sockets.address().toString(); }),
      getpid(), config.module, devicesText(prepared.executor->model()), joined(config.servers, ","),
      config.weights == WeightsMode::live ? "live" : "stashed", config.workers, config.threadsPerWorker,
      placesText(http->places()));
  const Status end = untilEnd(io, prepared.executor->model());
  http = nullptr;
  server = nullptr;  // also removes the sockets' files
  flushLog();
  // There is nothing to save, and trainers recompute pending passes at another executor, so there is no
  // reason to wait for passes and daemons.
  std::_Exit(end.ok() ? 0 : 1);
}

}  // namespace psd
