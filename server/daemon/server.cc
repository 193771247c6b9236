#include "server/daemon/server.h"

#include <algorithm>

#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "common/os/host.h"
#include "server/rpc/connection.h"
#include "server/rpc/login_service.h"

namespace psd {
namespace {

constexpr auto kSettlePoll = 2 * kj::MILLISECONDS;
constexpr auto kTick = 20 * kj::MILLISECONDS;       // while a policy goes by the clock …
constexpr auto kTickIdle = 250 * kj::MILLISECONDS;  // … and to see whether one does

/// Peers speak Cap'n Proto.
std::shared_ptr<PeerConnection> connectByRpc(std::shared_ptr<EventLoop> loop, int fd, std::string peer) {
  return std::make_shared<Connection>(
      std::move(loop), fd, std::move(peer),
      [](std::shared_ptr<Connection> connection) -> capnp::Capability::Client {
        return kj::heap<LoginService>(std::move(connection));
      });
}

}  // namespace

Server::Server(kj::AsyncIoContext& io, LoadedConfig loaded, std::vector<std::shared_ptr<Backend>> backends,
               Env& env, Reread reread, DescriptorBudget descriptors)
    : io_(io),
      loaded_(std::move(loaded)),
      reread_(std::move(reread)),
      descriptors_(descriptors),
      budgets_(loaded_.config.limits, descriptors_.connectionsMax()),
      control_(std::make_shared<const DaemonConfig>(loaded_.config), std::move(backends), env, counters_,
               budgets_),
      environment_{
          std::make_shared<const DaemonConfig>(loaded_.config),
          counters_,
          kj::getCurrentThreadExecutor(),
          control_,
          [this] { return status(); },
          [this] { return reload(); },
          [this](LifeId life, Step step, bool applied) { control_.samples().stepOver(life, step, applied); },
          connectByRpc,
          budgets_} {}

Server::~Server() {
  listeners_.clear();
  // Only after a failed start or an exception: an orderly end has stopped the threads already.
  if (!threads_.empty()) stopThreads().wait(io_.waitScope);
}

Status Server::start() {
  std::vector<ListenSockets> sockets;
  for (const Address& address : loaded_.config.listen) {
    PSD_ASSIGN_OR_RETURN(ListenSockets bound, listenOn(address));
    addresses_.push_back(bound.address());
    sockets.push_back(std::move(bound));
  }
  PSD_RETURN_IF_ERROR(control_.prepare());
  for (uint32_t i = 0; i < loaded_.config.threads; i++) {
    threads_.push_back(std::make_unique<EventLoopThread>(environment_, i));
  }
  const uint32_t most = connectionsMax();
  for (ListenSockets& bound : sockets) {
    listeners_.push_back(std::make_unique<Listener>(
        io_, std::move(bound), most, counters_,
        [this](OwnFd fd, std::string peer) { handOver(std::move(fd), std::move(peer)); }));
  }
  ticks_ = keepTicking().eagerlyEvaluate([](kj::Exception&& exception) {
    spdlog::error("the clock of the policies stands still: {}", exception.getDescription().cStr());
  });
  leaseWatch_ = control_.watchLeases(io_.provider->getTimer()).eagerlyEvaluate(nullptr);
  return {};
}

kj::Promise<void> Server::keepTicking() {
  // Once the daemon ends no round is closed by the clock: what is left of it goes on with the next daemon, or
  // was told to end.
  const auto interval = !control_.end().requested() && control_.models().tick() ? kTick : kTickIdle;
  return io_.provider->getTimer().afterDelay(interval).then([this] { return keepTicking(); });
}

std::vector<Address> Server::addresses() const { return addresses_; }

void Server::handOver(OwnFd fd, std::string peer) {
  EventLoopThread& thread = *threads_[nextThread_++ % threads_.size()];
  thread.post([fd = std::move(fd), peer = std::move(peer)](EventLoop& loop) mutable {
    loop.adopt(fd.release(), std::move(peer));
  });
}

kj::Promise<void> Server::run(std::function<Status()> whenQuiet) {
  return control_.end()
      .whenBegun()
      .then([this] { return drain(); })
      .then([this](bool settled) {
        warnOfHaste(settled);
        control_.end().notifyTrainers();
        if (control_.end().restarting()) {
          return settle([](EventLoop& loop) { return loop.atRest() && !loop.hasTrainers(); });
        }
        return settle([](EventLoop& loop) { return loop.quiet() && !loop.hasTrainers(); });
      })
      .then([this](bool settled) {
        warnOfHaste(settled);
        environment_.closed = true;
        // A round that a departure closed is applied by this loop, and what follows blocks it: a checkpoint
        // would wait for a lock that nobody lets go.
        return control_.models().quiesce();
      })
      .then([this] { return control_.whenFinishedRanksKept(); })
      .then([this, whenQuiet = std::move(whenQuiet)] {
        control_.end().tellOutcome(whenQuiet());
        return settle([](EventLoop& loop) { return !loop.owesOutcome(); });
      })
      .then([this](bool) { return stopThreads(); });
}

kj::Promise<bool> Server::drain() {
  if (control_.end().restarting()) {
    return onEveryLoop([](EventLoop& loop) { loop.closeGate(); })
        .then([this] { return settle([](EventLoop& loop) { return loop.atRest(); }); })
        .then([this](bool settled) -> kj::Promise<bool> {
          if (!control_.end().restarting()) return drain();  // the run is to end after all
          listeners_.clear();
          return settled;
        });
  }
  listeners_.clear();
  environment_.draining = true;
  control_.endDisconnected();
  control_.endWaits();
  // What waits at a gate is refused.
  return onEveryLoop([](EventLoop& loop) { loop.openGate(); }).then([this] {
    return settle([](EventLoop& loop) { return loop.quiet(); });
  });
}

uint32_t Server::connectionsMax() const {
  const uint32_t wanted = loaded_.config.limits.connections;
  const std::string shortfall = descriptors_.shortfall(wanted);
  if (!shortfall.empty()) spdlog::warn("{}", shortfall);
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, descriptors_.connectionsMax()));
}

void Server::warnOfHaste(bool settled) const {
  if (settled || hurry_) return;
  spdlog::warn("stopping without waiting longer for what is in flight (limits.drain_ms is {})",
               loaded_.config.limits.drainMs);
}

kj::Promise<bool> Server::settle(Condition settled) {
  auto deadline = io_.provider->getTimer().now() + loaded_.config.limits.drainMs * kj::MILLISECONDS;
  return poll(std::make_shared<Condition>(std::move(settled)), deadline);
}

kj::Promise<bool> Server::poll(std::shared_ptr<Condition> settled, kj::TimePoint deadline) {
  auto& timer = io_.provider->getTimer();
  return timer.afterDelay(kSettlePoll)
      .then([this, settled]() {
        auto answers = kj::heapArrayBuilder<kj::Promise<bool>>(threads_.size());
        for (auto& thread : threads_) {
          answers.add(thread->run([settled](EventLoop& loop) { return (*settled)(loop); }));
        }
        return kj::joinPromises(answers.finish());
      })
      .then([this, settled, deadline](kj::Array<bool> answers) -> kj::Promise<bool> {
        if (std::all_of(answers.begin(), answers.end(), [](bool yes) { return yes; })) return true;
        if (hurry_ || io_.provider->getTimer().now() >= deadline) return false;
        return poll(settled, deadline);
      });
}

kj::Promise<void> Server::onEveryThread(std::function<kj::Promise<void>(EventLoopThread&)> work) {
  auto done = kj::heapArrayBuilder<kj::Promise<void>>(threads_.size());
  for (auto& thread : threads_) done.add(work(*thread));
  return kj::joinPromises(done.finish());
}

kj::Promise<void> Server::onEveryLoop(std::function<void(EventLoop&)> work) {
  return onEveryThread([&](EventLoopThread& thread) { return thread.run(work); });
}

kj::Promise<void> Server::stopThreads() {
  // A request that was refused may have been answered by way of a third loop.
  const auto turn = [](EventLoopThread& thread) { return thread.turn(); };
  return onEveryThread([](EventLoopThread& thread) { return thread.shutDown(); })
      .then([this, turn] { return onEveryThread(turn); })
      .then([this, turn] { return onEveryThread(turn); })
      .then([this] { return onEveryThread([](EventLoopThread& thread) { return thread.stop(); }); })
      .then([this] { threads_.clear(); });
}

DaemonStatus Server::status() const {
  DaemonStatus status;
  status.version = PSD_VERSION;
  status.pid = static_cast<uint32_t>(getpid());
  status.host = hostName();
  status.uptimeSeconds = uptime_.seconds();
  for (const Address& address : addresses_) status.addresses.push_back(address.toString());
  status.threads = loaded_.config.threads;
  status.residentBytes = residentBytes();
  status.held = {.inFlight = budgets_.inFlight->used(),
                 .rings = budgets_.rings->used(),
                 .snapshots = budgets_.snapshots->used(),
                 .logPending = budgets_.logPending->used(),
                 .outgoing = budgets_.outgoing.load()};
  const Limits& limits = loaded_.config.limits;
  status.limits = {.inFlight = limits.inFlightBytes,
                   .rings = limits.allRingsBytes,
                   .snapshots = limits.snapshotBytes,
                   .logPending = limits.logPendingBytes,
                   .outgoing = limits.allOutgoingBytes,
                   .staged = limits.stagedBytes};
  control_.fillStatus(status);
  return status;
}

}  // namespace psd
