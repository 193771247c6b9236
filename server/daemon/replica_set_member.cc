#include "server/daemon/replica_set_member.h"

#include <cstdlib>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "common/config/json_file.h"
#include "common/log/log_line.h"
#include "common/os/host.h"
#include "common/os/text_file.h"
#include "common/text/text.h"
#include "server/client/primary_client.h"
#include "server/config/model_rules.h"
#include "server/daemon/restart_process.h"
#include "server/engine/etcd.h"
#include "server/move/move_mark.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConfigFile = "config.json";  // in the image, next to the checkpoint
constexpr std::chrono::milliseconds kDialTime{1'000};

std::vector<Address> reachableAt(const std::vector<Address>& listen, const ReplicationConfig& config) {
  if (!config.addresses.empty()) return config.addresses;
  std::vector<Address> out;
  for (Address address : listen) {
    if (address.kind == Address::Kind::tcp && address.host == "*") address.host = hostName();
    out.push_back(std::move(address));
  }
  return out;
}

/// `replication.wait` of a configuration; empty: not set.
std::string waitIn(const Json& config) {
  const auto replication = config.find("replication");
  if (replication == config.end() || !replication->is_object()) return "";
  const auto wait = replication->find("wait");
  return wait != replication->end() && wait->is_string() ? wait->get<std::string>() : "";
}

/// Warns if the failure of this machine would leave etcd without a majority, so that no takeover is possible.
void warnOfEngineHere(const std::vector<EtcdMember>& members) {
  std::vector<std::string> here;
  for (const EtcdMember& member : members) {
    if (isLocal({.host = member.host}) || member.host == hostName()) here.push_back(member.toString());
  }
  if (2 * (members.size() - here.size()) > members.size()) return;
  spdlog::warn("etcd at {} runs on this machine: if it fails, the engine fails too, and there is no takeover",
               joined(here, ", "));
}

}  // namespace

Result<std::unique_ptr<ServerReplicaSet>> ReplicaSetMember::make(Server& server, kj::AsyncIoContext& io,
                                                                 Env& env) {
  const DaemonConfig& config = server.loaded().config;
  PSD_ASSIGN_OR_RETURN(Credentials credentials, readCredentials(config.replication.credentials, std::getenv));
  kj::Timer& timer = io.provider->getTimer();
  warnOfEngineHere(config.engine->etcd.members);
  PSD_ASSIGN_OR_RETURN(auto engine, Etcd::open(io.provider->getNetwork(), timer, config.engine->etcd));
  std::unique_ptr<ReplicaSetMember> side(new ReplicaSetMember(server, env, std::move(engine)));
  ReplicaSettings terms{config.replication, config.engine->prefix + "/plan",
                        reachableAt(server.addresses(), config.replication),
                        fmt::format("psd on {} (process {})", hostName(), getpid())};
  side->member_ = std::make_unique<ReplicaController>(
      std::move(terms), DaemonId{server.coordinator().daemonId()}, *side->engine_, server.serving(), *side,
      server.replicator(),
      [credentials](PrimaryDial dial) {
        return std::make_unique<PrimaryClient>(std::move(dial), credentials, kDialTime);
      },
      timer);
  server.administration().setReplicaSet(side->member_.get());
  return std::unique_ptr<ServerReplicaSet>(std::move(side));
}

ReplicaSetMember::ReplicaSetMember(Server& server, Env& env, std::unique_ptr<Engine> engine)
    : server_(server),
      env_(env),
      engine_(std::move(engine)),
      mark_(std::make_shared<FolderMark>(env, server.loaded().config.durability,
                                         DaemonId{server.coordinator().daemonId()})),
      ownConfig_(server.loaded().effective) {
  // The receiver of a checkpoint notification may rely on it even if this daemon and the one that it followed
  // die.
  server_.host().beforeCheckpointAnnounced([mark = mark_] { return mark->write(); });
}

ReplicaSetMember::~ReplicaSetMember() noexcept(false) { server_.administration().setReplicaSet(nullptr); }

void ReplicaSetMember::start() { member_->start(mark_->read(), psd::wasRestarted()); }

bool ReplicaSetMember::continuesElsewhere() const {
  const ReplicaSetStatus status = member_->status();
  const bool inSync = !status.standby.empty() && status.standby == status.follower;
  return server_.serving().term() == 0 || inSync;
}

// --- As primary ----------------------------------------------------------------------------------------

Status ReplicaSetMember::serve(uint64_t term) {
  mark_->setTerm(term);
  PSD_RETURN_IF_ERROR(server_.resumeUnlessArriving());
  logMarkFailure(mark_->write());
  note("primary", fmt::format("primary of term {}", term));
  return {};
}

void ReplicaSetMember::continueServing(uint64_t term) {
  mark_->setTerm(term);
  logMarkFailure(mark_->renew());
}

void ReplicaSetMember::logMarkFailure(const Status& written) {
  if (!written.ok())
    spdlog::error("cannot mark the folder; a daemon started over it would wait: {}", written.message());
}

bool ReplicaSetMember::saves() const { return server_.loaded().config.durability.enabled(); }

bool ReplicaSetMember::hasValues() const {
  // A model that arrived by an uncommitted move must not be replicated.
  return server_.host().models().ready() && !server_.serving().incoming().underWay();
}

kj::Promise<Result<std::string>> ReplicaSetMember::sendCopy(std::shared_ptr<ImageStream> to) {
  // A follower needs the finished ranks of the past, too.
  server_.replicator()->append(server_.coordinator().departed());
  std::string text = jsonText(server_.loaded().effective);
  return server_.host().copyTo(std::move(to), {kConfigFile, std::move(text)});
}

kj::Promise<bool> ReplicaSetMember::closeGates() { return server_.closeGates(); }

void ReplicaSetMember::openGates() { server_.openGates(); }

void ReplicaSetMember::disconnectTrainers() { server_.disconnectTrainers(); }

// --- As standby ----------------------------------------------------------------------------------------

Result<bool> ReplicaSetMember::keepsOnDisk(const Json& primarys) const {
  const std::string_view disk = describe(ReplicationConfig::Wait::standbyAndDisk);
  if (waitIn(primarys) != disk) return false;
  const std::lock_guard hold(mutex_);
  if (waitIn(ownConfig_) == disk) return true;
  return Error{ErrorCode::invalidArgument,
               fmt::format("replication.wait is \"{}\" at the primary, which waits for its standby's disk: "
                           "configure the same here, with durability.type log",
                           disk)};
}

Result<LoadedConfig> ReplicaSetMember::withPrimaryRules(const Json& rules) const {
  const std::lock_guard hold(mutex_);
  auto loaded = readDaemonConfig(underRules(rules, ownConfig_));
  if (loaded.ok()) return loaded;
  return Error{ErrorCode::invalidArgument,
               "the primary's configuration is invalid on this daemon: " + loaded.message()};
}

void ReplicaSetMember::setOwnConfig(const Json& effective) {
  {
    const std::lock_guard hold(mutex_);
    ownConfig_ = effective;
  }
  warnOfLimits();
}

std::vector<std::string> ReplicaSetMember::lowerLimits() const {
  if (server_.serving().term() > 0) return {};
  const std::lock_guard hold(mutex_);
  return psd::lowerLimits(primaryConfig_, ownConfig_);
}

void ReplicaSetMember::warnOfLimits() {
  std::vector<std::string> below = lowerLimits();
  {
    const std::lock_guard hold(mutex_);
    if (below == warned_) return;
    warned_ = below;
  }
  if (below.empty()) return;
  const std::string line =
      "this standby has lower limits than its primary: " + joined(below, ", ") +
      "; it follows nevertheless, and applies its own limits once it is the primary: configure the same "
      "limits on both daemons";
  spdlog::warn("{}", line);
  server_.coordinator().events().add("standby", line);
}

Result<CopyPlace> ReplicaSetMember::makeCopy(Env& files, const Checkpoint& checkpoint, uint64_t term) {
  PSD_ASSIGN_OR_RETURN(const std::string text,
                       readText(files, kConfigFile, kConfigBytesMax, "a configuration"));
  PSD_ASSIGN_OR_RETURN(const Json primarys, parseJson(text, "the primary's configuration"));
  if (!primarys.is_object())
    return Error{ErrorCode::invalidArgument, "the primary's configuration is not an object"};
  PSD_ASSIGN_OR_RETURN(const bool onDisk, keepsOnDisk(primarys));
  PSD_ASSIGN_OR_RETURN(LoadedConfig config, withPrimaryRules(primarys));
  PSD_ASSIGN_OR_RETURN(auto model, server_.host().makeCopy(files, checkpoint, config.config));
  mark_->followAnother();
  CopyPlace place{model->store.get(), nullptr};
  if (onDisk) {
    place.disk = server_.host().makeDisk(model, [mark = mark_, term] { return mark->writeAsStandby(term); });
  }
  const std::lock_guard hold(mutex_);
  primaryConfig_ = primarys;
  copy_ = Copy{std::move(model), std::move(config)};
  return place;
}

void ReplicaSetMember::showCopy() {
  std::optional<Copy> copy;
  {
    const std::lock_guard hold(mutex_);
    copy.swap(copy_);
  }
  server_.replaceConfig(copy->config);
  server_.host().showCopy(std::move(copy->model),
                          std::make_shared<const DaemonConfig>(server_.loaded().config));
  note("standby", "the copy of " + member_->status().primary + "'s model is complete and follows it");
  warnOfLimits();
}

void ReplicaSetMember::serveCopy(FollowedState followed, uint64_t term) {
  // It would declare that what is saved from now on arrived by an uncommitted move.
  const DurabilityConfig& durability = server_.loaded().config.durability;
  if (durability.enabled()) {
    const Status removed = removeMoveMark(env_, durability.path, kArrivingName);
    if (!removed.ok()) return server_.fail(removed);
  }
  mark_->setTerm(term);
  // Before a push of this term is answered, since an existing log in the folder continues with that push.
  logMarkFailure(mark_->renew());
  const PriorRun prior = server_.host().serveCopy(std::move(followed.samples), std::move(followed.departed));
  server_.coordinator().begin(prior);
}

void ReplicaSetMember::movedAway(const RecordedMove& moved) { server_.adoptMove(moved); }

void ReplicaSetMember::exitWithPrimary(const std::string& reason) {
  if (!server_.coordinator().end().requested())
    server_.coordinator().requestStop("the primary has ended the run: " + reason);
}

// --- As either -----------------------------------------------------------------------------------------

void ReplicaSetMember::restartProcess(const std::string& why) {
  spdlog::warn("discarding all state and restarting: {}", why);
  std::vector<std::string> addresses;
  for (const Address& address : server_.addresses()) addresses.push_back(address.toString());
  psd::restartProcess(addresses, server_.pages());
}

void ReplicaSetMember::fail(const Status& why) { server_.fail(why); }

void ReplicaSetMember::note(const std::string& what, const std::string& line) {
  logLine(spdlog::level::info, {.event = what}, "{}", line);
  server_.coordinator().events().add(what, line);
}

}  // namespace psd
