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

Result<std::unique_ptr<ReplicaSetMember>> ReplicaSetMember::make(const Parts& parts,
                                                                 const std::vector<Address>& listen,
                                                                 kj::AsyncIoContext& io) {
  const DaemonConfig& config = parts.daemon.loaded().config;
  PSD_ASSIGN_OR_RETURN(Credentials credentials, readCredentials(config.replication.credentials, std::getenv));
  kj::Timer& timer = io.provider->getTimer();
  warnOfEngineHere(config.engine->etcd.members);
  PSD_ASSIGN_OR_RETURN(auto engine, Etcd::open(io.provider->getNetwork(), timer, config.engine->etcd));
  std::unique_ptr<ReplicaSetMember> member(new ReplicaSetMember(parts, std::move(engine)));
  ReplicaSettings terms{config.replication, config.engine->prefix + "/plan",
                        reachableAt(listen, config.replication),
                        fmt::format("psd on {} (process {})", hostName(), getpid())};
  member->controller_ = std::make_unique<ReplicaController>(
      std::move(terms), DaemonId{parts.coordinator.daemonId()}, *member->engine_, parts.coordinator.serving(),
      parts.daemon, *member, parts.replicator,
      [credentials](PrimaryDial dial) {
        return std::make_unique<PrimaryClient>(std::move(dial), credentials, kDialTime);
      },
      timer);
  parts.administration.setReplicaSet(member->controller_.get());
  return member;
}

ReplicaSetMember::ReplicaSetMember(const Parts& parts, std::unique_ptr<Engine> engine)
    : daemon_(parts.daemon),
      coordinator_(parts.coordinator),
      host_(parts.host),
      administration_(parts.administration),
      replicator_(parts.replicator),
      env_(parts.env),
      engine_(std::move(engine)),
      mark_(std::make_shared<FolderMark>(env_, daemon_.loaded().config.durability,
                                         DaemonId{coordinator_.daemonId()})),
      ownConfig_(daemon_.loaded().effective) {
  // The receiver of a checkpoint notification may rely on it even if this daemon and the one that it followed
  // die.
  host_.beforeCheckpointAnnounced([mark = mark_] { return mark->write(); });
}

ReplicaSetMember::~ReplicaSetMember() noexcept(false) { administration_.setReplicaSet(nullptr); }

void ReplicaSetMember::start() { controller_->start(mark_->read(), wasRestarted()); }

bool ReplicaSetMember::continuesElsewhere() const {
  const ReplicaSetStatus status = controller_->status();
  const bool inSync = !status.standby.empty() && status.standby == status.follower;
  return coordinator_.serving().term() == 0 || inSync;
}

// --- As primary ----------------------------------------------------------------------------------------

Status ReplicaSetMember::serve(uint64_t term, bool hasAllVersions) {
  mark_->setTerm(term);
  PSD_RETURN_IF_ERROR(host_.openVersions(hasAllVersions));
  PSD_RETURN_IF_ERROR(daemon_.resume());  // hides versions of a move that is not known to count
  administration_.setVersions(host_, coordinator_.daemonId());
  logMarkFailure(mark_->write());
  daemon_.note("primary", fmt::format("primary of term {}", term));
  return {};
}

Status ReplicaSetMember::openVersions(bool hasAll) {
  PSD_RETURN_IF_ERROR(host_.openVersions(hasAll));
  administration_.setVersions(host_, coordinator_.daemonId());
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

bool ReplicaSetMember::saves() const { return daemon_.loaded().config.durability.enabled(); }

bool ReplicaSetMember::hasValues() const {
  // A model that arrived by an uncommitted move must not be replicated.
  return host_.models().ready() && !coordinator_.serving().incoming().underWay();
}

kj::Promise<Result<std::string>> ReplicaSetMember::sendCopy(std::shared_ptr<ImageStream> to) {
  // A follower needs the finished ranks of the past, too.
  replicator_->append(coordinator_.departed());
  std::string text = jsonText(daemon_.loaded().effective);
  return host_.copyTo(std::move(to), {kConfigFile, std::move(text)});
}

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
  if (coordinator_.serving().term() > 0) return {};
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
  coordinator_.events().add("standby", line);
}

Result<CopyPlace> ReplicaSetMember::makeCopy(Env& files, const Checkpoint& checkpoint, uint64_t term) {
  PSD_ASSIGN_OR_RETURN(const std::string text,
                       readText(files, kConfigFile, kConfigBytesMax, "a configuration"));
  PSD_ASSIGN_OR_RETURN(const Json primarys, parseJson(text, "the primary's configuration"));
  if (!primarys.is_object())
    return Error{ErrorCode::invalidArgument, "the primary's configuration is not an object"};
  PSD_ASSIGN_OR_RETURN(const bool onDisk, keepsOnDisk(primarys));
  PSD_ASSIGN_OR_RETURN(LoadedConfig config, withPrimaryRules(primarys));
  PSD_ASSIGN_OR_RETURN(auto model, host_.makeCopy(files, checkpoint, config.config));
  mark_->followAnother();
  CopyPlace place{model->store.get(), nullptr, nullptr};
  PSD_ASSIGN_OR_RETURN(place.files, host_.makeVersionsCopy(files, config.config));
  if (onDisk) {
    place.disk = host_.makeDisk(model, [mark = mark_, term] { return mark->writeAsStandby(term); });
  }
  const std::lock_guard hold(mutex_);
  primaryConfig_ = primarys;
  primaryWaits_ = waitIn(primarys) != describe(ReplicationConfig::Wait::none);
  copy_ = Copy{std::move(model), std::move(config)};
  return place;
}

void ReplicaSetMember::showCopy() {
  std::optional<Copy> copy;
  {
    const std::lock_guard hold(mutex_);
    copy.swap(copy_);
  }
  daemon_.replaceConfig(copy->config);
  host_.showCopy(std::move(copy->model), std::make_shared<const DaemonConfig>(daemon_.loaded().config));
  daemon_.note("standby",
               "the copy of " + controller_->status().primary + "'s model is complete and follows it");
  warnOfLimits();
}

void ReplicaSetMember::serveCopy(FollowedState followed, uint64_t term) {
  // It would declare that what is saved from now on arrived by an uncommitted move.
  const DurabilityConfig& durability = daemon_.loaded().config.durability;
  if (durability.enabled()) {
    const Status removed = removeMoveMark(env_, durability.path, kArrivingName);
    if (!removed.ok()) return daemon_.fail(removed);
  }
  mark_->setTerm(term);
  // Before a push of this term is answered, since an existing log in the folder continues with that push.
  logMarkFailure(mark_->renew());
  bool hasAllVersions = followed.hasAllVersions;
  {
    const std::lock_guard hold(mutex_);
    hasAllVersions = hasAllVersions && primaryWaits_;
  }
  if (Status opened = openVersions(hasAllVersions); !opened.ok()) return daemon_.fail(opened);
  const PriorRun prior = host_.serveCopy(std::move(followed.samples), std::move(followed.departed));
  coordinator_.begin(prior);
}

}  // namespace psd
