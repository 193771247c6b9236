#include "server/daemon/server.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include <kj/debug.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/log/log_line.h"
#include "common/os/host.h"
#include "common/text/text.h"
#include "server/client/move_outcome_client.h"
#include "server/config/addresses.h"
#include "server/daemon/folder_mark.h"
#include "server/daemon/restart_process.h"
#include "server/rpc/connection.h"
#include "server/rpc/login_service.h"

namespace psd {
namespace {

constexpr auto kSettlePoll = 2 * kj::MILLISECONDS;
constexpr auto kTick = 20 * kj::MILLISECONDS;                // while a policy has time-driven work
constexpr std::chrono::milliseconds kAskLeadTimeout{2'000};  // timeout for the outcome of a move
constexpr auto kTickIdle = 250 * kj::MILLISECONDS;           // while none has

std::shared_ptr<Replicator> replicatorOf(const ReplicationConfig& config) {
  return std::make_shared<Replicator>(config.lagBytes,
                                      config.wait == ReplicationConfig::Wait::standbyAndDisk);
}

/// The folders to which a daemon with this configuration writes.
std::vector<std::string> writtenFolders(const DaemonConfig& config) {
  std::vector<std::string> folders;
  if (config.durability.enabled()) folders.push_back(config.durability.path);
  if (config.servesOnlyVersions() && !config.publish->path.empty()) folders.push_back(config.publish->path);
  if (config.save.empty()) return folders;
  const std::string folder = folderOf(config.save);
  if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  return folders;
}

}  // namespace

RunTerms runTermsOf(const DaemonConfig& config) {
  return {.worldSize = config.worldSize ? config.worldSize->max : 0,
          .worldSizeMin = config.worldSize ? config.worldSize->min : 0,
          .ranksMax = config.limits.connections,
          .lease = std::chrono::milliseconds(config.membership.leaseMs),
          .grace = std::chrono::milliseconds(config.membership.graceMs),
          .exitWhenDone = config.exitWhenDone,
          .keepsRanks = config.durability.enabled() || config.engine};
}

Server::Server(kj::AsyncIoContext& io, LoadedConfig loaded, std::vector<std::shared_ptr<Backend>> backends,
               Env& env, Reread reread, DescriptorBudget descriptors)
    : io_(io),
      env_(env),
      loaded_(std::move(loaded)),
      replicator_(loaded_.config.engine ? replicatorOf(loaded_.config.replication) : nullptr),
      reread_(std::move(reread)),
      descriptors_(descriptors),
      budgets_(loaded_.config.limits, descriptors_.connectionsMax()),
      reports_(kj::getCurrentThreadExecutor(), coordinator_),
      host_(std::make_shared<const DaemonConfig>(loaded_.config), std::move(backends), env, counters_,
            budgets_, reports_, replicator_),
      coordinator_(runTermsOf(loaded_.config), serving_, host_, counters_),
      controlLoop_(kj::getCurrentThreadExecutor(), coordinator_, host_, reports_),
      administration_(controlLoop_, *this),
      environment_{std::make_shared<const DaemonConfig>(loaded_.config), counters_, budgets_,
                   serving_.view()},
      outgoing_(coordinator_, host_, env, *environment_.config, *this, io.provider->getTimer()),
      incoming_(coordinator_, host_, env, *environment_.config, *this, io.provider->getTimer()) {
  host_.quiesceWith([this](auto work) { return whileQuiesced(std::move(work)); });
  coordinator_.onArrival([this](uint64_t move) { return incoming_.commit(move).ignoreResult(); });
}

Server::~Server() noexcept(false) {
  listeners_.clear();
  replicaSet_ = nullptr;
  // Only after a failed start or an exception; an orderly shutdown has stopped the threads already.
  if (!threads_.empty()) stopThreads().wait(io_.waitScope);
}

Status Server::start() {
  PSD_ASSIGN_OR_RETURN(auto rules, AuthRules::read(loaded_.config.auth));
  authenticator_.adopt(std::move(rules));
  PSD_ASSIGN_OR_RETURN(auto tls, TlsAcceptor::read(loaded_.config.tls));
  tlsAcceptor_.adopt(std::move(tls));
  std::vector<ListenSockets> sockets;
  for (size_t i = 0; i < loaded_.config.listen.size(); i++) {
    Result<ListenSockets> bound = listenOn(loaded_.config.listen[i]);
    if (!bound.ok()) return {bound.error().code, elementPath("listen", i) + ": " + bound.message()};
    addresses_.push_back(bound->address());
    sockets.push_back(*std::move(bound));
  }
  PSD_RETURN_IF_ERROR(host_.checkConfig(loaded_.config, 0, {}));
  PSD_RETURN_IF_ERROR(host_.open());
  if (loaded_.config.engine) {
    PSD_ASSIGN_OR_RETURN(
        replicaSet_, ReplicaSetMember::make({*this, coordinator_, host_, administration_, replicator_, env_},
                                            addresses_, io_));
    PSD_RETURN_IF_ERROR(outgoing_.look());
  } else {
    PSD_RETURN_IF_ERROR(host_.openVersions());
    PSD_RETURN_IF_ERROR(beginFollowing());
    administration_.setVersions(host_, coordinator_.daemonId());
    PSD_RETURN_IF_ERROR(prepareAlone());
  }
  administration_.setMoves(&outgoing_, &incoming_);
  for (uint32_t i = 0; i < loaded_.config.threads; i++) {
    threads_.push_back(std::make_unique<EventLoopThread>(environment_, i));
  }
  const uint32_t most = connectionsMax();
  for (ListenSockets& bound : sockets) {
    const bool tls = bound.address().tls;
    listeners_.push_back(std::make_unique<Listener>(io_, std::move(bound), most, counters_,
                                                    [this, tls](AcceptedSocket accepted, bool reserved) {
                                                      handOver(std::move(accepted), tls, reserved);
                                                    }));
  }
  ticks_ = keepTicking().eagerlyEvaluate([](kj::Exception&& exception) {
    spdlog::error("the policies' timer has stopped: {}", exception.getDescription().cStr());
  });
  leaseWatch_ = watchLeases().eagerlyEvaluate(nullptr);
  upkeep_.emplace(io_.provider->getTimer(), writtenFolders(loaded_.config),
                  [this] { tlsAcceptor_.warnOfExpiry(); });
  if (!replicaSet_) return {};
  replicaSet_->start();
  return {};
}

kj::Promise<void> Server::keepTicking() {
  // During a shutdown no round closes by time: it either continues with the next daemon, or its waits have
  // been ended.
  const auto interval = serving_.mayUpdate() && host_.models().tick() ? kTick : kTickIdle;
  noteCheckpoints();
  noteAbandoned();
  gradientRate_.note(counters_.gradients.value(), steadyMs());
  return io_.provider->getTimer().afterDelay(interval).then([this] { return keepTicking(); });
}

void Server::noteCheckpoints() {
  const DurabilityStatus status = host_.durability();
  if (status.checkpoints > notedCheckpoints_ && status.lastCheckpoint) {
    coordinator_.events().add(EventLog::kCheckpoint, status.lastCheckpoint->path + " is complete");
  }
  if (status.checkpointFailures > notedCheckpointFailures_) {
    coordinator_.events().add("failed", "a checkpoint: " + status.error);
  }
  notedCheckpoints_ = status.checkpoints;
  notedCheckpointFailures_ = status.checkpointFailures;
}

void Server::noteAbandoned() {
  PartsIntake* const intake = host_.intake();
  if (!intake) return;
  for (const std::string& line : intake->takeAbandoned()) coordinator_.events().add("abandoned", line);
}

Status Server::prepare() {
  PSD_ASSIGN_OR_RETURN(const PriorRun prior, host_.prepare());
  const bool continuesRun = coordinator_.begin(prior);
  host_.beginSaving();
  if (continuesRun) return {};
  // The finished ranks of another run must not count for this one.
  if (Status forgotten = host_.clearDepartedRanks(); !forgotten.ok()) {
    spdlog::error("cannot remove the finished ranks of another run: {}", forgotten.message());
  }
  return {};
}

Status Server::beginFollowing() {
  const auto& publish = loaded_.config.publish;
  if (!publish || publish->from != PublishConfig::From::upstream) return {};
  const auto credentials = [flags = publish->credentials] { return readCredentials(flags, std::getenv); };
  PSD_RETURN_IF_ERROR(credentials().status());
  replica_ = std::make_unique<VersionReplica>(
      host_.versions(), VersionReplica::Terms{publish->upstream, credentials, coordinator_.daemonId()},
      host_.versionsPath());
  administration_.setFreshness([this] { return replica_->freshness(); });
  return {};
}

Status Server::prepareAlone() {
  PSD_RETURN_IF_ERROR(outgoing_.look());
  const DurabilityConfig& durability = loaded_.config.durability;
  if (FolderMark(env_, durability, DaemonId{}).read().record) {
    spdlog::warn(
        "the folder '{}' belongs to a replica set, and no engine is configured: the other daemon "
        "may have newer state; configure engine to start the replica set",
        durability.path);
  }
  return serving_.outgoing().moved() ? Status() : resume();
}

Status Server::resume() {
  PSD_RETURN_IF_ERROR(incoming_.look());
  return serving_.incoming().unread() ? Status() : prepare();
}

std::vector<Address> Server::addresses() const { return addresses_; }

std::vector<std::string> Server::reachableAt() const {
  const DaemonsConfig& daemons = loaded_.config.daemons;
  std::vector<std::string> texts;
  std::vector<Address> addresses = daemons.several() ? daemons.addresses[daemons.index] : addresses_;
  if (replicaSet_)
    std::ranges::copy(replicaSet_->controller().addressesOfAll(), std::back_inserter(addresses));
  for (Address address : addresses) {
    if (address.kind == Address::Kind::tcp && address.host == "*") address.host = hostName();
    const std::string text = address.toString();
    const bool known = std::ranges::find(texts, text) != texts.end();
    if (!known && texts.size() < kMoveLeadAddressesMax) texts.push_back(text);
  }
  return texts;
}

kj::Promise<Result<bool>> Server::recordMove(const RecordedMove& move) {
  return replicaSet_->controller().moveAway(move);
}

Result<MoveOutcome> Server::askLead(const MoveLead& lead, uint64_t move) const {
  PSD_ASSIGN_OR_RETURN(const Credentials credentials, readCredentials({.token = ""}, std::getenv));
  return askMoveOutcome(lead, move, credentials.tls, kAskLeadTimeout);
}

kj::Promise<void> Server::watchLeases() {
  const auto next = coordinator_.expireLeases(std::chrono::milliseconds(steadyMs()));
  return io_.provider->getTimer().afterDelay(next.count() * kj::MILLISECONDS).then([this] {
    return watchLeases();
  });
}

void Server::handOver(AcceptedSocket accepted, bool tls, bool reserved) {
  EventLoopThread& thread = *threads_[nextThread_++ % threads_.size()];
  thread.post([this, accepted = std::move(accepted), tls, reserved](EventLoop& loop) mutable {
    if (tls) {
      loop.detach(tlsAcceptor_.meet(loop, std::move(accepted))
                      .then([this, &loop, reserved](kj::Maybe<AcceptedPeer> acceptedPeer) {
                        KJ_IF_MAYBE (in, acceptedPeer) {
                          in->peer.reserved = reserved;
                          serve(loop, kj::mv(*in));
                        }
                      }));
      return;
    }
    const int fd = accepted.fd.release();
    serve(loop, {fd,
                 wire::wrapSocket(*loop.io().lowLevelProvider, fd),
                 {std::move(accepted.peer), accepted.user, {}, reserved}});
  });
}

void Server::serve(EventLoop& loop, AcceptedPeer acceptedPeer) {
  // Peers speak Cap'n Proto.
  const auto bootstrap = [this](std::shared_ptr<Connection> connection) -> capnp::Capability::Client {
    return kj::heap<LoginService>(std::move(connection), controlLoop_, administration_, authenticator_);
  };
  loop.connections().adopt(std::make_shared<Connection>(loop.shared_from_this(), kj::mv(acceptedPeer),
                                                        authenticator_, answers_, bootstrap));
}

kj::Promise<std::vector<std::shared_ptr<EventLoop>>> Server::loops() {
  auto found = kj::heapArrayBuilder<kj::Promise<std::shared_ptr<EventLoop>>>(threads_.size());
  for (auto& thread : threads_) {
    found.add(thread->run([](EventLoop& loop) { return loop.shared_from_this(); }));
  }
  return kj::joinPromises(found.finish()).then([](kj::Array<std::shared_ptr<EventLoop>> loops) {
    return std::vector<std::shared_ptr<EventLoop>>(loops.begin(), loops.end());
  });
}

kj::Promise<void> Server::run(std::function<Status()> whenQuiesced) {
  return coordinator_.end()
      .whenBegun()
      .then([this] {
        outgoing_.endWaits();
        return leaveReplicaSet();
      })
      .then([this] { return drain(); })
      .then([this](bool settled) {
        warnIfUnsettled(settled);
        coordinator_.end().notifyTrainers();
        if (coordinator_.end().restarting()) {
          return settle([](EventLoop& loop) { return loop.atRest() && !loop.connections().hasTrainers(); });
        }
        return settle([](EventLoop& loop) { return loop.quiet() && !loop.connections().hasTrainers(); });
      })
      .then([this](bool settled) {
        warnIfUnsettled(settled);
        serving_.close();
        // A round that a departure closed is applied on this loop, which whenQuiesced() blocks: the
        // checkpoint would wait forever for a lock that the round holds.
        return host_.models().quiesce();
      })
      .then([this] { return coordinator_.whenDepartedRanksSaved(); })
      .then([this, whenQuiesced = std::move(whenQuiesced)] {
        const Status saved = whenQuiesced();
        return endReplicaSetRun().then([this, saved](const Status& told) {
          if (!told.ok()) spdlog::warn("{}", told.message());
          coordinator_.end().setOutcome(saved.ok() ? told : saved);
        });
      })
      .then([this] { return settle([](EventLoop& loop) { return !loop.connections().owesOutcome(); }); })
      .then([this](bool) { return stopThreads(); });
}

kj::Promise<void> Server::leaveReplicaSet() {
  if (!replicaSet_ || !coordinator_.end().restarting()) return kj::READY_NOW;
  return replicaSet_->controller().leave();
}

kj::Promise<Status> Server::endReplicaSetRun() {
  if (!replicaSet_ || coordinator_.end().restarting()) return Status();
  return replicaSet_->controller().endRun(coordinator_.end().error().message);
}

EndOf Server::sigtermEnds() const {
  if (replicaSet_ && replicaSet_->continuesElsewhere()) return EndOf::daemon;
  const DurabilityConfig& durability = loaded_.config.durability;
  return durability.enabled() && durability.resume == "auto" ? EndOf::daemon : EndOf::run;
}

void Server::restart(const std::string& why) {
  spdlog::warn("discarding all state and restarting: {}", why);
  std::vector<std::string> addresses;
  for (const Address& address : addresses_) addresses.push_back(address.toString());
  restartProcess(addresses, pages_);
}

void Server::exit(const std::string& reason) {
  if (!coordinator_.end().requested()) coordinator_.requestStop(reason);
}

void Server::note(const std::string& event, const std::string& line) {
  logLine(spdlog::level::info, {.event = event}, "{}", line);
  coordinator_.events().add(event, line);
}

void Server::fail(const Status& why) {
  failure_ = why;
  coordinator_.requestStop(why.message());
}

kj::Promise<bool> Server::closeGates() {
  return onEveryLoop([](EventLoop& loop) { loop.gate().close(); }).then([this] {
    return settle([](EventLoop& loop) { return loop.atRest(); });
  });
}

void Server::postToLoops(std::function<void(EventLoop&)> work) {
  posted_ =
      posted_.then([this, work = std::move(work)] { return onEveryLoop(work); }).eagerlyEvaluate(nullptr);
}

void Server::openGates() {
  postToLoops([](EventLoop& loop) { loop.gate().open(); });
}

void Server::disconnectTrainers() {
  postToLoops([](EventLoop& loop) { loop.connections().disconnectTrainers(); });
}

void Server::replaceConfig(LoadedConfig loaded) {
  loaded_ = std::move(loaded);
  budgets_.follow(loaded_.config.limits);
  coordinator_.follow(runTermsOf(loaded_.config));
  auto config = std::make_shared<const DaemonConfig>(loaded_.config);
  postToLoops([config](EventLoop& loop) { loop.setConfig(config); });
}

kj::Promise<bool> Server::drain() {
  if (coordinator_.end().restarting()) {
    return onEveryLoop([](EventLoop& loop) { loop.gate().close(); })
        .then([this] { return settle([](EventLoop& loop) { return loop.atRest(); }); })
        .then([this](bool settled) -> kj::Promise<bool> {
          if (!coordinator_.end().restarting()) return drain();  // the run must end after all
          listeners_.clear();
          return settled;
        });
  }
  listeners_.clear();
  serving_.drain();
  coordinator_.endDisconnected();
  host_.models().endWaits(coordinator_.end().error());
  // Gradients that wait at a gate are refused.
  return onEveryLoop([](EventLoop& loop) { loop.gate().open(); }).then([this] {
    return settle([](EventLoop& loop) { return loop.quiet(); });
  });
}

uint32_t Server::connectionsMax() const {
  const uint32_t wanted = loaded_.config.limits.connections;
  const std::string shortfall = descriptors_.shortfall(wanted);
  if (!shortfall.empty()) spdlog::warn("{}", shortfall);
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, descriptors_.connectionsMax()));
}

void Server::warnIfUnsettled(bool settled) const {
  if (settled || hurry_) return;
  spdlog::warn("stopping with requests still in flight (limits.drain_ms is {})",
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
  // Two turns: the failure of a request may reach its caller through a third loop.
  const auto turn = [](EventLoopThread& thread) { return thread.turn(); };
  return onEveryThread([](EventLoopThread& thread) { return thread.shutDown(); })
      .then([this, turn] { return onEveryThread(turn); })
      .then([this, turn] { return onEveryThread(turn); })
      .then([this] { return onEveryThread([](EventLoopThread& thread) { return thread.stop(); }); })
      .then([this] { threads_.clear(); });
}

void Server::fillUpkeep(DaemonStatus& status) const {
  status.residentBytes = residentBytes();
  const LogLosses lost = logLosses();
  status.logLinesDropped = lost.dropped;
  status.logLinesSuppressed = lost.suppressed;
  status.certificateExpirySeconds = tlsAcceptor_.certificateExpiry();
  if (!upkeep_) return;
  status.disks = upkeep_->disks();
  status.openDescriptors = upkeep_->openDescriptors();
}

void Server::fillMoveState(DaemonStatus& status) const {
  switch (serving_.phase()) {
    case ServingPhase::moved:
      status.state = "moved";
      for (const auto& addresses : serving_.outgoing().move().to) {
        status.movedTo.push_back(joined(addresses, ","));
      }
      break;
    case ServingPhase::arriving: status.state = "arriving"; break;
    case ServingPhase::quiescing:
    case ServingPhase::undecided:
      if (status.state == "serving") status.state = "moving";
      break;
    default: break;
  }
}

DaemonStatus Server::status() const {
  DaemonStatus status;
  status.version = PSD_VERSION;
  status.pid = static_cast<uint32_t>(getpid());
  status.host = hostName();
  status.uptimeSeconds = uptime_.seconds();
  for (const Address& address : addresses_) status.addresses.push_back(address.toString());
  status.pages = pages_;
  status.threads = loaded_.config.threads;
  fillUpkeep(status);
  status.held = {.inFlight = budgets_.inFlight->used(),
                 .rings = budgets_.rings->used(),
                 .snapshots = budgets_.snapshots->used(),
                 .logPending = budgets_.logPending->used(),
                 .outgoing = budgets_.outgoing.load(),
                 .arriving = incoming_.held()};
  const Limits& limits = loaded_.config.limits;
  status.limits = {.inFlight = limits.inFlightBytes,
                   .rings = limits.allRingsBytes,
                   .snapshots = limits.snapshotBytes,
                   .logPending = limits.logPendingBytes,
                   .outgoing = limits.allOutgoingBytes,
                   .staged = limits.stagedBytes,
                   .arriving = limits.arrivingBytes};
  if (const DaemonsConfig& daemons = loaded_.config.daemons; daemons.several()) {
    const Partition partition = daemons.partition();
    status.partition = {partition.index, partition.of, daemons.texts()};
  }
  host_.fillStatus(status);
  coordinator_.fillStatus(status);
  if (replica_) status.publish = replica_->status();
  if (loaded_.config.servesOnlyVersions()) {  // which needs no model
    if (status.state == "waiting for a model") status.state = "serving";
    status.policy.clear();
    status.optimizer.clear();
  }
  status.losesModel = serving_.servesModel() && host_.losesModel();
  if (replicaSet_) {
    status.replicaSet = replicaSet_->controller().status();
    status.replicaSet->lowerLimits = replicaSet_->lowerLimits();
  }
  status.gradientsPerSecond = gradientRate_.perSecond(counters_.gradients.value(), steadyMs());
  status.movedFrom = incoming_.cameFrom();
  if (status.replicaSet && status.state != "stopping") {
    if (const std::string state = status.replicaSet->stateAsReplica(); !state.empty()) status.state = state;
    if (status.model && status.state == "standby") status.model->ready = true;  // the copy of the primary's
  }
  fillMoveState(status);
  return status;
}

}  // namespace psd
