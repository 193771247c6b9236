#include "server/daemon/daemon.h"

#include <csignal>
#include <optional>

#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/log/log_line.h"
#include "common/os/text_file.h"
#include "common/text/text.h"
#include "server/daemon/http_hooks.h"
#include "server/daemon/server.h"
#include "server/daemon/service_manager.h"
#include "server/http/http_side.h"

namespace psd {
namespace {

/// The first CUDA device; null if there is none, or, with a warning, if this program cannot use it.
std::shared_ptr<Backend> openAnyCuda() {
  const Result<int> count = cudaDeviceCount();
  if (count.ok() && *count == 0) return nullptr;
  auto backend = count.ok() ? makeCudaBackend(0) : count.error();
  if (backend.ok()) return *std::move(backend);
  spdlog::warn("device auto: the parameters are on the CPU, since CUDA cannot be used: {}",
               backend.message());
  return nullptr;
}

Result<std::vector<std::shared_ptr<Backend>>> openDevices(const DaemonConfig& config) {
  using Kind = DeviceChoice::Kind;
  std::vector<std::shared_ptr<Backend>> backends;
  for (const DeviceChoice& choice : config.devices) {
    std::shared_ptr<Backend> backend;
    if (choice.kind == Kind::automatic && !config.servesOnlyVersions()) backend = openAnyCuda();
    if (choice.kind == Kind::cuda) {
      PSD_ASSIGN_OR_RETURN(backend, makeCudaBackend(choice.index));
    }
    backends.push_back(backend ? std::move(backend) : makeCpuBackend(sharesWeights(config)));
  }
  return backends;
}

/// Raises the soft limit, often 1024, since each connection needs a descriptor. DescriptorBudget works with
/// the resulting limit.
void raiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Status writePortFile(Env& env, const std::string& path, const std::vector<Address>& addresses) {
  for (const Address& address : addresses) {
    if (address.kind != Address::Kind::tcp) continue;
    const Status written = writeTextAtomically(env, path, std::to_string(address.port) + "\n");
    return written.ok() ? written : Status(written.error().code, "--port-file: " + written.message());
  }
  return {ErrorCode::invalidArgument, "--port-file: the daemon listens on no tcp:// address"};
}

/// The first signal requests an orderly shutdown, the second one a quick one.
kj::Promise<void> onSignals(kj::UnixEventPort& port, Server& server, bool first = true) {
  return port.onSignal(SIGTERM)
      .exclusiveJoin(port.onSignal(SIGINT))
      .then([&port, &server, first](siginfo_t info) {
        const bool sigterm = info.si_signo == SIGTERM;
        if (first || (!sigterm && server.coordinator().end().restarting())) {
          server.coordinator().requestStop(sigterm ? "SIGTERM" : "SIGINT",
                                           sigterm ? server.sigtermEnds() : EndOf::run);
        } else {
          server.hurry();
        }
        return onSignals(port, server, false);
      });
}

constexpr size_t kStateBytesMax = 400;

/// The state line for the service manager.
std::string stateOf(Server& server) {
  if (server.coordinator().end().requested()) return "shutting down";
  if (const ReplicaController* const member = server.replicaSet()) {
    const ReplicaSetStatus group = member->status();
    const std::string state = group.stateAsReplica();
    if (state == "waiting") return "waiting: " + oneLine(group.waits, kStateBytesMax);
    if (!state.empty()) return state;
  }
  if (server.host().intake()) return "storing published versions";
  if (server.host().versions() && !server.host().publisher()) return "copying published versions";
  const auto model = server.host().models().model();
  return model ? "serving " + printable(model->store->model().name) : "waiting for a model";
}

/// Reloads the configuration on SIGHUP. The server logs the outcome.
kj::Promise<void> onHangups(kj::UnixEventPort& port, Server& server, ServiceManager& manager) {
  return port.onSignal(SIGHUP)
      .then([&server, &manager](siginfo_t) {
        manager.reloading();
        return server.reload("SIGHUP");
      })
      .then([&port, &server, &manager](Result<std::string>) {
        manager.ready(stateOf(server));
        return onHangups(port, server, manager);
      });
}

void logReady(const Server& server, const std::vector<std::string>& places, const DaemonConfig& config,
              const std::string& devices) {
  std::string addresses;
  for (const Address& address : server.addresses()) addresses += " " + address.toString();
  std::string pages;
  for (const std::string& place : places) pages += (pages.empty() ? ", page " : " ") + place;
  std::string work = "device " + devices + ", policy " + describePolicies(config.groups) + ", optimizer " +
                     describeOptimizers(config.groups);
  if (config.servesOnlyVersions()) {
    const bool copies = config.publish->from == PublishConfig::From::upstream;
    work = (copies ? "copies the versions of " +
                         joined(config.publish->upstream, ", ",
                                [](const Address& each) { return each.toString(); }) +
                         " to "
                   : std::string("stores versions in ")) +
           (config.publish->path.empty() ? "memory" : quotedPath(config.publish->path));
  }
  logLine(spdlog::level::info, {.event = "ready"}, "psd {} ready: listening on{}, pid {}, {}, {} threads{}",
          PSD_VERSION, addresses, getpid(), work, config.threads, pages);
}

/// Warns users who have configured nothing and may expect the model to be saved.
void logUnsaved(const DaemonConfig& config) {
  if (config.durability.enabled() || !config.save.empty() || config.engine) return;
  if (config.servesOnlyVersions()) {
    if (!config.publish->path.empty() || config.publish->from == PublishConfig::From::upstream) return;
    spdlog::info(
        "nothing is saved: the versions are lost when this daemon ends; configure 'publish.path' to keep "
        "them");
    return;
  }
  spdlog::info(
      "nothing is saved: the model is lost when this daemon ends; configure 'durability' or 'save' to keep "
      "it");
}

Status saveFinalModel(Env& env, const DaemonConfig& config, ParameterHost& host) {
  if (config.save.empty()) return {};
  if (!host.models().ready()) {
    spdlog::warn("nothing saved to '{}': no model was trained", config.save);
    return {};
  }
  PSD_RETURN_IF_ERROR(saveParameters(env, config.save, *host.models().model()->store));
  spdlog::info("saved the model to '{}'", config.save);
  return {};
}

/// The final save. A failure does not prevent the other steps; the Error names all failures.
Status saveAll(Env& env, const DaemonConfig& config, Server& server) {
  std::string faults;
  const auto note = [&](const char* what, const Status& status) {
    if (!status.ok()) faults += (faults.empty() ? "" : "; ") + std::string(what) + status.message();
  };
  server.endFollowing();
  const bool runIsOver = server.coordinator().close();
  note("the last checkpoint: ", server.host().saveLast(!server.coordinator().serving().servesModel()));
  note("the model: ", saveFinalModel(env, config, server.host()));
  if (faults.empty() && runIsOver) note("the finished ranks: ", server.host().clearDepartedRanks());
  return faults.empty() ? Status() : Status(ErrorCode::io, "could not save " + faults);
}

/// Checks `save` at the start, so that a bad path does not fail only after the training.
Status checkSavePath(Env& env, const DaemonConfig& config) {
  if (config.save.empty()) return {};
  const Status writable = checkWritable(env, config.save);
  return writable.ok() ? writable : Status(ErrorCode::invalidArgument, "save: " + writable.message());
}

}  // namespace

Status runDaemon(const LoadedConfig& loaded, std::function<Result<LoadedConfig>()> reread,
                 const std::string& portFile, Env& env) {
  // Blocks the signals in this thread and all threads that it creates, including the CUDA driver's. A thread
  // created earlier would receive a signal and terminate the daemon.
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) kj::UnixEventPort::captureSignal(signal);
  const DaemonConfig& config = loaded.config;
  PSD_RETURN_IF_ERROR(initLogging(config.log));
  PSD_RETURN_IF_ERROR(checkSavePath(env, config));
  raiseDescriptorLimit();
  PSD_ASSIGN_OR_RETURN(auto backends, openDevices(config));
  std::string devices;
  for (const auto& backend : backends) devices += (devices.empty() ? "" : ", ") + backend->describe();
  const DescriptorBudget descriptors = ownDescriptors(config);
  PSD_RETURN_IF_ERROR(descriptors.check());

  auto io = kj::setupAsyncIo();
  std::signal(SIGPIPE, SIG_IGN);

  Server server(io, loaded, std::move(backends), env, std::move(reread), descriptors);
  ServiceManager manager = ServiceManager::ofEnvironment();
  {
    const auto starting = manager.startLongWork("starting");
    PSD_RETURN_IF_ERROR(server.start());
  }
  std::optional<HttpSide> http;
  if (!config.http.listen.empty()) {
    http.emplace(io, config.http, httpHooksOf(server, io.provider->getTimer()));
    PSD_RETURN_IF_ERROR(http->start());
  }
  if (http) server.setPages(http->places());
  if (!portFile.empty()) PSD_RETURN_IF_ERROR(writePortFile(env, portFile, server.addresses()));
  logReady(server, http ? http->places() : std::vector<std::string>(), config, devices);
  logUnsaved(config);
  manager.ready(stateOf(server));

  Status saved;
  auto signals = onSignals(io.unixEventPort, server).eagerlyEvaluate([](kj::Exception&& exception) {
    spdlog::error("signals are no longer watched: {}", exception.getDescription().cStr());
  });
  auto hangups = onHangups(io.unixEventPort, server, manager).eagerlyEvaluate([](kj::Exception&& exception) {
    spdlog::error("SIGHUP is no longer watched: {}", exception.getDescription().cStr());
  });
  auto telling = manager.keepNotifying(io.provider->getTimer(), [&server] { return stateOf(server); })
                     .eagerlyEvaluate(nullptr);
  auto ending = server.coordinator()
                    .end()
                    .whenBegun()
                    .then([&manager] { manager.stopping(); })
                    .eagerlyEvaluate(nullptr);
  const auto save = [&] {
    const auto saving = manager.startLongWork("saving");
    return saved = saveAll(env, config, server);
  };
  server.run(save).wait(io.waitScope);
  if (!server.failure().ok()) return server.failure();
  if (saved.ok()) {
    spdlog::info("stopped");
  } else if (!config.log.file.empty()) {
    spdlog::error("stopped; {}", saved.message());  // main() prints it to standard error
  }
  return saved;
}

}  // namespace psd
