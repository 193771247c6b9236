#include "server/daemon/group_side.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "common/config/json_file.h"
#include "common/config/object_reader.h"
#include "common/os/host.h"
#include "common/os/text_file.h"
#include "server/checkpoint/sealed_json.h"
#include "server/config/model_rules.h"
#include "server/daemon/begin_anew.h"
#include "server/engine/etcd.h"
#include "server/group/group_text.h"
#include "server/move/move_mark.h"
#include "server/rpc/primary_client.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConfigFile = "config.json";  // beside a copy
constexpr std::string_view kMarkName = "primary.json";
constexpr std::string_view kMarkFormat = "psd primary", kMarkChecksum = "crc32c";
constexpr uint64_t kMarkBytesMax = 4096;
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

/// `replication.wait` of a configuration; empty: it has none.
std::string waitIn(const Json& config) {
  const auto replication = config.find("replication");
  if (replication == config.end() || !replication->is_object()) return "";
  const auto wait = replication->find("wait");
  return wait != replication->end() && wait->is_string() ? wait->get<std::string>() : "";
}

/// Who saved what is in a folder.
Result<Continued> readMark(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text, readText(env, path, kMarkBytesMax, "the mark of a primary"));
  PSD_ASSIGN_OR_RETURN(Json document, openSealedJson(text, kMarkChecksum));
  ObjectReader in(std::move(document));
  if (in.text("format", "") != kMarkFormat) in.fail("format", "must be \"" + std::string(kMarkFormat) + "\"");
  const std::string daemon = in.text("daemon", "");
  Continued mark;
  mark.standby = in.boolean("standby", false);
  mark.epoch = in.integer("epoch", 0, mark.standby ? 0 : 1, UINT64_MAX);
  in.text(kMarkChecksum, "");
  const auto [end, error] =
      std::from_chars(daemon.data(), daemon.data() + daemon.size(), mark.daemon.value, 16);
  if (error != std::errc() || end != daemon.data() + daemon.size()) {
    in.fail("daemon", "must be a number of 16 hexadecimal digits");
  }
  if (const Status read = in.finish(); !read.ok()) {
    return Error{read.error().code, "'" + path + "': " + read.message()};
  }
  return mark;
}

}  // namespace

Result<std::unique_ptr<ServerGroup>> GroupSide::make(Server& server, kj::AsyncIoContext& io, Env& env) {
  const DaemonConfig& config = server.loaded().config;
  PSD_ASSIGN_OR_RETURN(Credentials credentials, readCredentials(config.replication.credentials, std::getenv));
  kj::Timer& timer = io.provider->getTimer();
  PSD_ASSIGN_OR_RETURN(auto engine, Etcd::open(io.provider->getNetwork(), timer, config.engine->etcd));
  std::unique_ptr<GroupSide> side(new GroupSide(server, env, std::move(engine)));
  GroupTerms terms{config.replication, config.engine->prefix + "/plan",
                   reachableAt(server.addresses(), config.replication),
                   fmt::format("psd on {} (process {})", hostName(), getpid())};
  side->member_ = std::make_unique<GroupMember>(
      std::move(terms), DaemonId{server.coordinator().daemonId()}, *side->engine_, *side, server.replicator(),
      [credentials](PrimaryDial dial) {
        return std::make_unique<PrimaryClient>(std::move(dial), credentials, kDialTime);
      },
      timer);
  server.administration().setGroup(side->member_.get());
  server.keepDoor([member = side->member_.get()]() -> std::optional<Error> {
    if (member->serves() > 0) return {};
    return member->turnedAway();
  });
  return std::unique_ptr<ServerGroup>(std::move(side));
}

GroupSide::GroupSide(Server& server, Env& env, std::unique_ptr<Engine> engine)
    : server_(server),
      env_(env),
      engine_(std::move(engine)),
      folder_(server.loaded().config.durability.path),
      own_(server.loaded().effective) {}

GroupSide::~GroupSide() noexcept(false) {
  server_.coordinator().keepDoor(nullptr);
  server_.administration().setGroup(nullptr);
}

void GroupSide::start() { member_->start(continued(), psd::begunAnew()); }

bool GroupSide::goesOnElsewhere() const {
  const GroupStatus status = member_->status();
  const bool inSync = !status.standby.empty() && status.standby == status.follower;
  return member_->serves() == 0 || inSync;
}

// --- As primary ----------------------------------------------------------------------------------------

Status GroupSide::serve(uint64_t epoch) {
  server_.coordinator().setEpoch(epoch);
  PSD_RETURN_IF_ERROR(server_.goOn());
  markFolder(epoch);
  note("primary", fmt::format("primary of epoch {}", epoch));
  return {};
}

void GroupSide::serveOn(uint64_t epoch) {
  server_.coordinator().setEpoch(epoch);
  if (marked_ > 0) markFolder(epoch);
}

bool GroupSide::hasValues() const {
  // A model that may not count is nobody's to go on with.
  return server_.host().models().ready() && !server_.moveUnderWay();
}

kj::Promise<Result<std::string>> GroupSide::sendCopy(std::shared_ptr<ImageStream> to) {
  // Who follows is told what happened before, too.
  server_.replicator()->append(server_.coordinator().departed());
  std::string text = jsonText(server_.loaded().effective);
  return server_.host().copyTo(std::move(to), {kConfigFile, std::move(text)});
}

kj::Promise<bool> GroupSide::closeGates() { return server_.closeGates(); }

void GroupSide::openGates() { server_.openGates(); }

// --- As standby ----------------------------------------------------------------------------------------

Result<bool> GroupSide::keepsOnDisk(const Json& primarys) const {
  const std::string_view disk = describe(ReplicationConfig::Wait::standbyAndDisk);
  if (waitIn(primarys) != disk) return false;
  const std::lock_guard hold(mutex_);
  if (waitIn(own_) == disk) return true;
  return Error{ErrorCode::invalidArgument,
               fmt::format("replication.wait is \"{}\" at the primary, which waits for the disk of its "
                           "standby: give this daemon the same, with durability.type log",
                           disk)};
}

Result<LoadedConfig> GroupSide::asPrimarys(const Json& rules) const {
  const std::lock_guard hold(mutex_);
  auto loaded = readDaemonConfig(underRules(rules, own_));
  if (loaded.ok()) return loaded;
  return Error{ErrorCode::invalidArgument,
               "the primary's configuration does not do here: " + loaded.message()};
}

bool GroupSide::follows() const { return member_->serves() == 0; }

void GroupSide::keepOwn(const Json& effective) {
  const std::lock_guard hold(mutex_);
  own_ = effective;
}

Result<CopyPlace> GroupSide::makeCopy(Env& files, const Checkpoint& checkpoint) {
  PSD_ASSIGN_OR_RETURN(const std::string text,
                       readText(files, kConfigFile, kConfigBytesMax, "a configuration"));
  PSD_ASSIGN_OR_RETURN(const Json primarys, parseJson(text, "the primary's configuration"));
  if (!primarys.is_object())
    return Error{ErrorCode::invalidArgument, "the primary's configuration is no object"};
  PSD_ASSIGN_OR_RETURN(const bool onDisk, keepsOnDisk(primarys));
  PSD_ASSIGN_OR_RETURN(LoadedConfig config, asPrimarys(primarys));
  PSD_ASSIGN_OR_RETURN(auto model, server_.host().makeCopy(files, checkpoint, config.config));
  CopyPlace place{model->store.get(), nullptr};
  if (onDisk) {
    place.disk = server_.host().makeDisk(
        model, [this] { return writeMark({.daemon = member_->me(), .standby = true}); });
  }
  const std::lock_guard hold(mutex_);
  copy_ = Copy{std::move(model), std::move(config)};
  return place;
}

void GroupSide::showCopy() {
  std::optional<Copy> copy;
  {
    const std::lock_guard hold(mutex_);
    copy.swap(copy_);
  }
  server_.goBy(copy->config);
  server_.host().showCopy(std::move(copy->model),
                          std::make_shared<const DaemonConfig>(server_.loaded().config));
  note("standby", "the model of " + member_->status().primary + " is here, and follows it");
}

void GroupSide::serveCopy(Followed followed, uint64_t epoch) {
  // It would say that what is saved from now on came by a move that may not count.
  const DurabilityConfig& durability = server_.loaded().config.durability;
  if (durability.enabled()) {
    const Status removed = removeMoveMark(env_, durability.path, kArrivingName);
    if (!removed.ok()) return server_.fail(removed);
  }
  server_.coordinator().setEpoch(epoch);
  const PriorRun prior = server_.host().serveCopy(std::move(followed.samples), std::move(followed.departed));
  server_.coordinator().begin(prior);
}

void GroupSide::movedAway(const PlannedMove& moved) { server_.modelMovedAway({moved.move, moved.to, {}}); }

void GroupSide::endWithPrimary(const std::string& reason) {
  if (!server_.coordinator().end().requested())
    server_.coordinator().requestStop("the primary has ended the run: " + reason);
}

// --- As either -----------------------------------------------------------------------------------------

void GroupSide::beginAnew(const std::string& why) {
  spdlog::warn("beginning anew: {}", why);
  std::vector<std::string> addresses;
  for (const Address& address : server_.addresses()) addresses.push_back(address.toString());
  psd::beginAnew(addresses, server_.pages());
}

void GroupSide::fail(const Status& why) { server_.fail(why); }

void GroupSide::note(const std::string& what, const std::string& line) {
  spdlog::info("{}", line);
  server_.coordinator().events().add(what, line);
}

// --- The folder ----------------------------------------------------------------------------------------

void GroupSide::checkpointTaken() {
  // What was there before, of this daemon's or of another one's, is not to be gone on from any more.
  if (member_->serves() > 0) markFolder(member_->serves());
}

void GroupSide::markFolder(uint64_t epoch) {
  const DurabilityConfig& durability = server_.loaded().config.durability;
  if (!durability.enabled() || marked_ == epoch) return;
  const Status written = writeMark({.daemon = member_->me(), .epoch = epoch});
  if (written.ok()) {
    marked_ = epoch;
  } else {
    spdlog::error("a daemon that is started over this folder would wait: {}", written.message());
  }
}

Status GroupSide::writeMark(const Continued& mark) const {
  Json text = {{"format", kMarkFormat}, {"daemon", hex(mark.daemon)}, {"epoch", mark.epoch}};
  if (mark.standby) text["standby"] = true;
  return writeTextAtomically(env_, folder_ + "/" + std::string(kMarkName), sealJson(text, kMarkChecksum));
}

std::optional<Continued> GroupSide::continued() const {
  const DurabilityConfig& durability = server_.loaded().config.durability;
  if (!durability.enabled() || durability.resume != "auto") return {};
  const std::string path = durability.path + "/" + std::string(kMarkName);
  const auto there = env_.exists(path);
  if (there.ok() && !*there) return {};
  auto mark = readMark(env_, path);
  if (!mark.ok()) {
    spdlog::error("it is not known whose state the folder has, so it is not gone on from: {}",
                  mark.message());
    return {};
  }
  mark->complete = durability.type == DurabilityConfig::Type::log;
  return *mark;
}

}  // namespace psd
