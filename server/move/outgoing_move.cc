#include "server/move/outgoing_move.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/config/move_rules.h"
#include "server/config/store_rules.h"

namespace psd {
namespace {

/// The shard of a checkpoint's file; nothing: another kind of file.
std::optional<uint32_t> shardOf(const std::string& path) {
  constexpr std::string_view kPrefix = "shard-";
  const size_t slash = path.rfind('/');
  const std::string_view name = std::string_view(path).substr(slash == std::string::npos ? 0 : slash + 1);
  if (!name.starts_with(kPrefix)) return {};
  uint32_t shard = 0;
  const std::string_view number = name.substr(kPrefix.size());
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), shard);
  if (error != std::errc() || end == number.data()) return {};
  return shard;
}

}  // namespace

Status OutgoingMove::look() {
  const DurabilityConfig& durability = config_.durability;
  if (!durability.enabled()) return {};
  PSD_ASSIGN_OR_RETURN(auto mark, readMoveMark(env_, durability.path, kMovedName));
  if (!mark) return {};
  serving_.changeOutgoing([&](auto& state) { state.adopt({mark->move, std::move(mark->to)}); });
  refuseVersions();
  spdlog::warn("{}, as '{}/{}' says; {}", serving_.movedError().message, durability.path, kMovedName,
               remedy());
  return {};
}

void OutgoingMove::adopt(RecordedMove move) {
  serving_.changeOutgoing([&](auto& state) { state.adopt(std::move(move)); });
  resolveWaiters(serving_.outgoing().move());
  logUnmarked(writeMark(serving_.outgoing().move()).status);
  refuseVersions();
  const std::string line = serving_.movedError().message;
  spdlog::warn("{}, as the cluster document says; {}", line, remedy());
  coordinator_.events().add("moving", line);
}

kj::Promise<RecordedMove> OutgoingMove::whenMoved() {
  if (serving_.outgoing().moved()) return serving_.outgoing().move();
  if (coordinator_.end().requested()) return RecordedMove();
  auto moved = kj::newPromiseAndFulfiller<RecordedMove>();
  // Drops calls whose connections have closed.
  std::erase_if(waiting_, [](auto& each) { return !each->isWaiting(); });
  waiting_.push_back(kj::mv(moved.fulfiller));
  return kj::mv(moved.promise);
}

void OutgoingMove::resolveWaiters(const RecordedMove& moved) {
  for (auto& each : std::exchange(waiting_, {})) each->fulfill(RecordedMove(moved));
}

std::string OutgoingMove::remedy() const {
  const bool kept = config_.durability.enabled();
  const std::string mark = fmt::format("'{}/{}'", config_.durability.path, kMovedName);
  constexpr std::string_view kOld = " (which serves the old state from before the move)";
  if (!config_.engine) {
    return "to serve a model here again, start it " +
           (kept ? fmt::format("over an empty folder, or without {}{}", mark, kOld) : "again");
  }
  return fmt::format(
      "to serve a model here again, stop both replicas, remove the key '{}/plan' from the engine, "
      "and start them {}",
      config_.engine->prefix,
      kept ? fmt::format("over empty folders, or without {} and that of the other daemon{}", mark, kOld)
           : "again");
}

std::optional<Error> OutgoingMove::refusal() const {
  if (!serving_.outgoing().moved()) return {};
  return Error{ErrorCode::invalidArgument, "a model has moved away from this daemon: " + remedy()};
}

Status OutgoingMove::mayBegin() const {
  PSD_RETURN_IF_ERROR(serving_.mayMove());
  if (config_.servesOnlyVersions()) return storeHasNoModel();
  if (!host_.models().ready()) return {ErrorCode::notReady, "the model has no values yet"};
  if (host_.rollsBack()) return {ErrorCode::notReady, "a rollback is in progress; try again"};
  if (const std::set<Rank> awaited = coordinator_.awaited(); !awaited.empty()) {
    // They could not quiesce, nor could trainers that wait for this daemon.
    return {ErrorCode::notReady,
            fmt::format("rank {}, joined before this daemon was restarted, is not back yet; try again",
                        awaited.begin()->value)};
  }
  return {};
}

Result<MoveTerms> OutgoingMove::terms() const {
  PSD_RETURN_IF_ERROR(mayBegin());
  return ownTerms();
}

MoveTerms OutgoingMove::ownTerms() const {
  const DaemonConfig& config = host_.config();
  const bool publishes = host_.publisher() != nullptr;
  MoveTerms terms{moveRules(config.groups, publishes ? &*config.publish : nullptr),
                  coordinator_.worldSize(),
                  coordinator_.askedCodecs(),
                  {coordinator_.daemonId(), daemon_.reachableAt()}};
  if (!publishes) return terms;
  terms.versions = VersionTerms{.durable = config.durability.enabled()};
  for (const VersionInfo& version : host_.versions()->versions()) terms.versions->bytes += version.bytes;
  return terms;
}

Status OutgoingMove::begin(uint64_t move, DaemonAddresses to, std::chrono::milliseconds most,
                           MoveStart begun) {
  PSD_RETURN_IF_ERROR(mayBegin());
  if (move == 0 || to.empty()) return {ErrorCode::invalidArgument, "not a valid move"};
  const auto daemons = static_cast<uint32_t>(to.size());
  const std::string line = "the model is about to move to " + addressesText(to);
  serving_.changeOutgoing([&](auto& state) {
    state.begin({move, std::move(to)}, config_.daemons.index > 0 ? begun.lead : 0);
  });
  spdlog::info("{}", line);
  coordinator_.events().add("moving", line);
  coordinator_.startMove({move, daemons});
  // Several daemons publish the last rounds of the trainers, see closeGates().
  versionsHeld_ =
      (config_.daemons.several() ? kj::Promise<void>(kj::READY_NOW) : host_.holdVersions()).fork();
  deadline_ = timer_.afterDelay(most.count() * kj::MILLISECONDS)
                  .then([this, move, most] { abandon(move, "it took longer than " + durationText(most)); })
                  .eagerlyEvaluate(nullptr);
  if (begun.beats) beats_.watch([this, move] { abandon(move, "psd move no longer sends heartbeats"); });
  return {};
}

void OutgoingMove::onHeartbeat(uint64_t move) {
  if (serving_.outgoing().underWay() && move == serving_.outgoing().move().move) beats_.onHeartbeat();
}

kj::Promise<Result<QuiescedModel>> OutgoingMove::whenQuiesced(uint64_t move) {
  using Outcome = Result<QuiescedModel>;
  if (!serving_.outgoing().underWay() || move != serving_.outgoing().move().move) {
    return Outcome(ErrorCode::notReady, "this move is not in progress here");
  }
  return coordinator_.pause()
      .whenAllQuiesced()
      .then([this, move](Status aside) -> kj::Promise<Status> {
        if (!aside.ok()) return aside;
        if (move != serving_.outgoing().move().move)
          return Status(ErrorCode::notReady, "the move was aborted");
        return closeGates();
      })
      .then([this, move](const Status& status) -> Outcome {
        if (!serving_.outgoing().underWay()) openGates();  // it was aborted while they closed
        if (!status.ok()) return status.error();
        PSD_RETURN_IF_ERROR(serving_.changeOutgoing([move](auto& state) { return state.quiesce(move); }));
        QuiescedModel quiesced{{coordinator_.departed(), coordinator_.ranks()}, ownTerms()};
        if (host_.publisher()) quiesced.versions = continuation();
        return quiesced;
      });
}

VersionsContinuation OutgoingMove::continuation() const {
  VersionsContinuation versions = host_.versions()->continuation();
  const ParameterStore& store = *host_.models().model()->store;
  versions.rounds = UINT64_MAX;
  for (size_t i = 0; i < store.shardCount(); i++) {
    versions.rounds = std::min(versions.rounds, store.shard(i).version().value);
  }
  return versions;
}

Status OutgoingMove::checkStill(uint64_t move) const {
  // Not `unavailable`, which means that the outcome is unknown.
  if (coordinator_.end().requested()) return {ErrorCode::notReady, "the daemon is about to exit"};
  return serving_.outgoing().checkStill(move);
}

kj::Promise<Result<std::string>> OutgoingMove::give(uint64_t move, const Range& range,
                                                    std::shared_ptr<ImageStream> to) {
  using Outcome = Result<std::string>;
  if (Status still = checkStill(move); !still.ok()) return Outcome(still.error());
  const ParameterStore& store = *host_.models().model()->store;
  const uint64_t elements = ModelLayout(store.model()).totalElements();
  if (range.begin > elements || range.count > elements - range.begin) {
    return Outcome(ErrorCode::invalidArgument, "there are fewer elements here");
  }
  std::set<uint32_t> wanted;
  for (size_t i = 0; i < store.shardCount(); i++) {
    const ShardRange& has = store.shard(i).range();
    const uint64_t first = std::max(has.begin, range.begin);
    if (first < std::min(has.begin + has.count, range.begin + range.count)) wanted.insert(has.id.value);
  }
  return host_.giveTo(std::move(to), [wanted = std::move(wanted)](const std::string& path) {
    const auto shard = shardOf(path);
    return !shard || wanted.contains(*shard);
  });
}

kj::Promise<Status> OutgoingMove::commit(uint64_t move) {
  if (serving_.outgoing().outcome(move, false) == MoveOutcome::committed) return Status();
  if (Status still = checkStill(move); !still.ok()) return still;
  Status begun = serving_.changeOutgoing([move](auto& state) { return state.commit(move); });
  if (!begun.ok()) return begun;
  return decide();
}

kj::Promise<Status> OutgoingMove::decide() {
  using Written = OutgoingMoveState::Written;
  const RecordedMove& move = serving_.outgoing().move();
  if (config_.engine) {
    return daemon_.recordMove(move).then(
        [this, move](const Result<bool>& counts) -> kj::Promise<Status> {
          if (counts.ok() && *counts) {
            return markFolder(move).then([this, move] { return decided(move.move, {Written::yes, {}}); });
          }
          // Not `unavailable`, which means that the outcome is unknown.
          return decided(move.move, {Written::no,
                                     {ErrorCode::notReady,
                                      counts.ok() ? "another daemon has taken over" : counts.message()}});
        },
        [this, id = move.move](kj::Exception&& exception) -> kj::Promise<Status> {
          return decided(id, {Written::unknown, {ErrorCode::internal, exception.getDescription().cStr()}});
        });
  }
  return background_.run<Writing>([this, move] { return writeMark(move); })
      .then([this, id = move.move](const Writing& writing) { return decided(id, writing); },
            [this, id = move.move](kj::Exception&& exception) {  // no thread could be started
              return decided(id, {Written::no, {ErrorCode::overloaded, exception.getDescription().cStr()}});
            });
}

kj::Promise<void> OutgoingMove::markFolder(const RecordedMove& move) {
  return background_.tryRun<Status>([this, move] { return writeMark(move).status; })
      .then([](const Status& written) { logUnmarked(written); });
}

void OutgoingMove::logUnmarked(const Status& written) {
  if (written.ok()) return;
  spdlog::error("the move is recorded in the cluster document but not in the folder: {}", written.message());
}

OutgoingMove::Writing OutgoingMove::writeMark(const RecordedMove& move) const {
  using Written = OutgoingMoveState::Written;
  const DurabilityConfig& durability = config_.durability;
  if (!durability.enabled()) return {Written::yes, {}};
  Status status = writeMoveMark(env_, durability.path, kMovedName, {move.move, move.to, {}});
  if (status.ok()) return {Written::yes, {}};
  // The file may exist, but not durably.
  const bool gone = removeMoveMark(env_, durability.path, kMovedName).ok();
  return {gone ? Written::no : Written::unknown, std::move(status)};
}

Status OutgoingMove::decided(uint64_t move, const Writing& writing) {
  using Written = OutgoingMoveState::Written;
  serving_.changeOutgoing([&](auto& state) { state.written(writing.written); });
  if (writing.written == Written::yes) {
    leave();
  } else if (writing.written == Written::no) {
    abandon(move, writing.status.message());
  } else {
    // Trainers stay quiesced: the next daemon over the folder redirects or resumes, by what it finds there.
    deadline_ = nullptr;
    const std::string line =
        "it is unknown whether the model has moved: " +
        (config_.engine ? writing.status.message()
                        : fmt::format("'{}/{}' can neither be written nor removed: {}",
                                      config_.durability.path, kMovedName, writing.status.message()));
    coordinator_.requestStop(line, EndOf::daemon);
    return {ErrorCode::unavailable, line};
  }
  return writing.status;
}

kj::Promise<Status> OutgoingMove::closeGates() {
  closed_ = true;
  return daemon_.closeGates().then([this](bool closed) -> kj::Promise<Status> {
    if (!closed) return Status(ErrorCode::notReady, "pushes in flight did not finish within limits.drain_ms");
    const Status aborted(ErrorCode::notReady, "the move was aborted");
    if (!closed_) return aborted;
    auto held = config_.daemons.several() ? host_.holdVersions() : versionsHeld_.addBranch();
    return held.then([this, aborted]() -> Status {
      if (!closed_) return aborted;
      host_.freezeVersions({ErrorCode::standby, "the model is about to move to other daemons; try again"});
      return {};
    });
  });
}

void OutgoingMove::openGates() {
  if (std::exchange(closed_, false) && !coordinator_.end().restarting()) daemon_.openGates();
}

void OutgoingMove::refuseVersions() {
  if (!host_.versions()) return;
  host_.versions()->leave(serving_.movedError());
  host_.versions()->end(serving_.movedError());
}

void OutgoingMove::leave() {
  beats_.end();
  deadline_ = nullptr;
  const RecordedMove& moved = serving_.outgoing().move();
  // Not `standby`: calls that wait end with the daemon, when readers know where the model is.
  if (host_.versions()) {
    host_.versions()->leave({ErrorCode::shuttingDown, serving_.movedError().message});
  }
  resolveWaiters(moved);
  coordinator_.endMove(moved.to);
  if (!coordinator_.end().requested()) coordinator_.requestStop(serving_.movedError().message);
}

void OutgoingMove::abandon(uint64_t move, const std::string& why) {
  const bool still = serving_.outgoing().frozen();
  const DaemonAddresses to = serving_.outgoing().move().to;
  if (!serving_.changeOutgoing([move](auto& state) { return state.abandon(move); })) return;
  const std::string missing = still ? std::string() : coordinator_.pause().missing();
  const std::string line =
      fmt::format("the model stays here, the move was aborted: {}{}", why,
                  missing.empty() ? "" : fmt::format("; ranks not quiesced: {}", missing));
  spdlog::warn("{}", line);
  coordinator_.events().add("moving", line);
  beats_.end();
  coordinator_.endMove({});
  openGates();
  host_.releaseVersions();
  if (serving_.outgoing().asks() == move) askLead(move, to);
}

void OutgoingMove::askLead(uint64_t move, const DaemonAddresses& to) {
  MoveLead lead{serving_.outgoing().lead(), {}};
  for (const Address& address : config_.daemons.addresses.front())
    lead.addresses.push_back(address.toString());
  for (const auto& addresses : to) {
    lead.addresses.insert(lead.addresses.end(), addresses.begin(), addresses.end());
  }
  poll_.start(move, std::move(lead), [this, move](MoveOutcome outcome) -> kj::Promise<bool> {
    using Next = OutgoingMoveState::Next;
    const Next next = serving_.changeOutgoing([&](auto& state) { return state.answered(move, outcome); });
    if (next != Next::commit) return next == Next::done;
    return decide().then([](const Status& decided) { return decided.ok(); });
  });
}

}  // namespace psd
