#include "server/client/move_client.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/async-io.h>

#include "common/os/random_id.h"
#include "common/os/socket.h"
#include "common/plan/model_partitions.h"
#include "common/plan/same_rules.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "common/tls/connect.h"
#include "common/types/stopwatch.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "schema/psd.capnp.h"
#include "server/client/version_carrier.h"
#include "server/move/command_heartbeats.h"
#include "server/move/move_mark.h"

namespace psd {
namespace {

constexpr const char* kAborted = "the move was aborted; trainers continue at the source daemons";

constexpr size_t kReasonBytesMax = 3000;
constexpr uint64_t kVersionsMoreMax = 4;  // that are published while versions are copied
constexpr kj::Duration kGiveUpTime = 2 * kj::SECONDS;

/// A daemon that takes part in the move, with its capabilities.
struct Participant {
  std::string name;
  wire::Socket socket;
  std::unique_ptr<capnp::TwoPartyClient> client;
  schema::Reading::Client reading = nullptr;
  schema::Admin::Client admin = nullptr;
  DaemonAddresses daemons, movedTo;
  uint32_t index = 0;
  uint64_t move = 0;
  ModelPartition has = {};  // as a part of the whole model
  std::string rules = {};   // of a target daemon
};

/// A move in progress. Owned by one thread.
class Mover {
 public:
  explicit Mover(const MoveOrder& order)
      : order_(order),
        io_(kj::setupAsyncIo()),
        deadline_(timer().now() + order.timeout.count() * kj::MILLISECONDS),
        move_(drawId()) {}

  Result<MoveReport> run();

 private:
  kj::Timer& timer() { return io_.provider->getTimer(); }
  std::chrono::milliseconds timeLeft() {
    return std::chrono::milliseconds(std::max((deadline_ - timer().now()) / kj::MILLISECONDS, int64_t{1}));
  }
  /// Waits for the promise; its Error is prefixed with `who`. Also an Error on timeout.
  template <class T>
  Result<T> wait(const std::string& who, kj::Promise<Result<T>> promise, kj::TimePoint until);
  template <class T>
  Result<T> wait(const std::string& who, kj::Promise<Result<T>> promise) {
    return wait(who, kj::mv(promise), deadline_);
  }
  /// Like wait(), for concurrent calls to several daemons; names the daemon whose connection broke.
  Status waitForAll(const std::string& when, kj::Promise<Result<bool>> promise);
  /// Waits for a call that returns only a status.
  template <class Request>
  Status tell(const std::string& who, Request&& request);

  Result<Participant> connect(const Address& address);
  Status connectAll();
  Status checkPlaces();
  Status readModelSpecs();
  Status fetchTerms();
  /// Whether the target daemons are compatible with the model and its trainers.
  Status check(schema::MoveTerms::Reader terms);
  /// See Admin.arrive in the schema.
  Result<schema::ArrivingModel::Client> arriveAt(Participant& peer, uint64_t move, uint32_t parts);
  Status arriveAtTargets();
  Status beginAtSources();
  /// Sends heartbeats to all participants for the duration of the command.
  kj::Promise<void> sendHeartbeats();
  /// Resolves when the connection to a participant breaks; `gone`: that participant.
  kj::Promise<Result<bool>> untilOneDisconnects(const Participant*& gone);
  /// Copies the published versions that the targets do not have yet, if any move along. `all`: no more are
  /// made; else returns once the targets are close behind.
  Status copyVersions(bool all);
  /// Copies the oldest of them; returns how many are left, nullopt: there was none.
  Result<std::optional<uint64_t>> copyVersion();
  void prepareVersions();
  Status whenQuiesced();
  Status transferModel();
  Status install();
  /// Aborts the move: the target daemons discard what they received.
  void giveUp();
  /// Commits the move at the lead; from then on it can no longer be aborted.
  Status commit();
  Result<MoveReport> commitAgain();
  void notifyTargets();

  const MoveOrder& order_;
  kj::AsyncIoContext io_;
  const kj::TimePoint deadline_;
  const uint64_t move_;
  std::vector<Participant> from_, to_;
  DaemonAddresses places_;  // of `to_`
  ModelSpec whole_;
  kj::Maybe<capnp::Response<schema::MoveTermsResult>> terms_;   // the lead's
  std::vector<capnp::Response<schema::QuiescedResult>> quiet_;  // by source
  std::vector<ModelPartition> cut_;                             // by target daemon
  std::vector<schema::LeavingModel::Client> leaving_;
  std::vector<schema::ArrivingModel::Client> arriving_;
  uint32_t worldSize_ = 0;
  std::vector<uint32_t> departed_, ranks_;
  std::unique_ptr<VersionCarrier> versions_;
  MoveReport report_;
  kj::Promise<void> heartbeats_ = nullptr;  // last: it uses all of the above
};

template <class Service>
void heartbeat(Service& service) {
  service.heartbeatRequest().send().ignoreResult().detach([](kj::Exception&&) {});  // older daemons fail it
}

template <class T>
Result<T> Mover::wait(const std::string& who, kj::Promise<Result<T>> promise, kj::TimePoint until) {
  try {
    Result<T> outcome = timer().timeoutAt(until, kj::mv(promise)).wait(io_.waitScope);
    if (outcome.ok()) return outcome;
    return Error{outcome.error().code, who + ": " + printable(outcome.message(), kReasonBytesMax)};
  } catch (const kj::Exception& exception) {
    if (exception.getType() == kj::Exception::Type::OVERLOADED) {
      return Error{ErrorCode::deadlineExceeded, who + ": no answer in time"};
    }
    if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) {
      return Error{ErrorCode::protocolMismatch, who + ": this daemon's version does not support moves"};
    }
    return Error{ErrorCode::unavailable, who + ": the connection broke"};
  }
}

Status Mover::waitForAll(const std::string& when, kj::Promise<Result<bool>> promise) {
  Status status = wait<bool>(when, kj::mv(promise)).status();
  if (status.ok()) return status;
  // A daemon that lost another may report so before the connection from here to that one has broken.
  const auto soon = std::min(deadline_, timer().now() + 200 * kj::MILLISECONDS);
  for (auto* const peers : {&to_, &from_}) {
    for (Participant& peer : *peers) {
      auto broke = peer.client->onDisconnect().then([]() -> Result<bool> { return true; });
      if (!wait<bool>(peer.name, kj::mv(broke), soon).ok()) continue;
      return {ErrorCode::unavailable, fmt::format("{}: the connection broke {}", peer.name, when)};
    }
  }
  return status;
}

template <class Request>
Status Mover::tell(const std::string& who, Request&& request) {
  return wait<bool>(who, request.send().then([](auto&& answer) -> Result<bool> {
           PSD_RETURN_IF_ERROR(wire::readStatus(answer.getStatus()));
           return true;
         }))
      .status();
}

Result<Participant> Mover::connect(const Address& address) {
  Participant peer;
  peer.name = address.toString();
  PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeLeft()));
  PSD_ASSIGN_OR_RETURN(peer.socket, wait<wire::Socket>(peer.name, streamOver(io_, std::move(fd), address,
                                                                             order_.credentials.tls)));
  peer.client = std::make_unique<capnp::TwoPartyClient>(*peer.socket.stream);
  auto login = peer.client->bootstrap().castAs<schema::Login>().loginRequest();
  wire::writeLogin("psd " PSD_VERSION, order_.credentials.token, login);
  PSD_RETURN_IF_ERROR(wait<bool>(
      peer.name, login.send().then([&peer](capnp::Response<schema::LoginResult> answer) -> Result<bool> {
        PSD_RETURN_IF_ERROR(wire::readStatus(answer.getStatus()));
        if (!answer.hasAdmin()) return wire::forbiddenError(peer.name, "admin", answer);
        PSD_ASSIGN_OR_RETURN(peer.daemons, wire::readDaemons(peer.name, answer));
        PSD_ASSIGN_OR_RETURN(peer.movedTo, wire::readDaemonAddresses(peer.name, answer.getMovedTo()));
        peer.index = answer.getDaemon();
        peer.move = answer.getMove();
        peer.reading = answer.getReading();
        peer.admin = answer.getAdmin();
        return true;
      })));
  return peer;
}

Status Mover::connectAll() {
  for (const Address& address : order_.from) {
    PSD_ASSIGN_OR_RETURN(from_.emplace_back(), connect(address));
    if (from_.front().move != 0) break;  // the other sources are no longer needed
  }
  for (const Address& address : order_.to) {
    PSD_ASSIGN_OR_RETURN(to_.emplace_back(), connect(address));
  }
  return checkPlaces();
}

Status Mover::checkPlaces() {
  places_ = to_.front().daemons;
  if (places_.empty()) places_ = {order_.toServers};
  for (size_t i = 0; i < to_.size(); i++) {
    const bool agrees = to_[i].daemons == to_.front().daemons && to_[i].index == i;
    if (agrees && places_.size() == to_.size()) continue;
    return {
        ErrorCode::invalidArgument,
        fmt::format("{}: this is daemon {} of {}; all daemons of a model must be configured with the same "
                    "`daemons`, and each its own `index`",
                    to_[i].name, to_[i].index, std::max<size_t>(to_[i].daemons.size(), 1))};
  }
  return {};
}

Status Mover::readModelSpecs() {
  std::vector<ModelSpec> specs;
  for (Participant& peer : from_) {
    PSD_ASSIGN_OR_RETURN(
        specs.emplace_back(),
        wait<ModelSpec>(peer.name,
                        peer.reading.observeRequest().send().then(
                            [](capnp::Response<schema::ObserveResult> answer) -> Result<ModelSpec> {
                              if (answer.isError()) return wire::readError(answer.getError());
                              return wire::readModel(answer.getObserving().getModel());
                            })));
  }
  PSD_ASSIGN_OR_RETURN(whole_, joinPartitions(specs));
  PSD_ASSIGN_OR_RETURN(auto before, partitionModel(whole_, static_cast<uint32_t>(from_.size())));
  for (size_t i = 0; i < from_.size(); i++) from_[i].has = std::move(before[i]);
  PSD_ASSIGN_OR_RETURN(cut_, partitionModel(whole_, static_cast<uint32_t>(to_.size())));
  report_.parameters = whole_.parameterCount();
  return {};
}

Status Mover::fetchTerms() {
  Participant& lead = from_.front();
  return wait<bool>(lead.name, lead.admin.moveTermsRequest().send().then(
                                   [this](capnp::Response<schema::MoveTermsResult> answer) -> Result<bool> {
                                     if (answer.isError()) return wire::readError(answer.getError());
                                     terms_ = kj::mv(answer);
                                     return true;
                                   }))
      .status();
}

Status Mover::check(schema::MoveTerms::Reader terms) {
  uint64_t versionBytes = 0;
  if (terms.hasVersions()) {
    PSD_ASSIGN_OR_RETURN(versionBytes,
                         wait<uint64_t>("published versions", versions_->bytes(terms.getVersions())));
  }
  for (size_t j = 0; j < to_.size(); j++) {
    auto request = arriving_[j].checkRequest();
    request.setTerms(terms);
    // Also the address at which this command has reached the lead.
    const auto told = terms.getAddresses();
    const kj::uint count = std::min<kj::uint>(told.size(), kMoveLeadAddressesMax - 1);
    auto addresses = request.getTerms().initAddresses(count + 1);
    for (kj::uint i = 0; i < count; i++) addresses.set(i, told[i]);
    addresses.set(count, from_.front().name.c_str());
    if (terms.hasVersions()) request.getTerms().getVersions().setBytes(versionBytes);
    wire::writeModel(whole_, request.initModel());
    PSD_RETURN_IF_ERROR(tell(to_[j].name, kj::mv(request)));
  }
  return {};
}

Result<schema::ArrivingModel::Client> Mover::arriveAt(Participant& peer, uint64_t move, uint32_t parts) {
  auto request = peer.admin.arriveRequest();
  request.setMove(move);
  request.setParts(parts);
  request.setHeartbeats(true);
  return wait<schema::ArrivingModel::Client>(
      peer.name,
      request.send().then(
          [&peer](capnp::Response<schema::ArriveResult> answer) -> Result<schema::ArrivingModel::Client> {
            if (answer.isError()) return wire::readError(answer.getError());
            peer.rules = wire::textIn(answer.getRules());
            return answer.getArriving();
          }));
}

Status Mover::arriveAtTargets() {
  for (Participant& peer : to_) {
    auto arriving = arriveAt(peer, move_, static_cast<uint32_t>(from_.size()));
    if (!arriving.ok()) return arriving.status();
    arriving_.push_back(kj::mv(*arriving));
    const Participant& first = to_.front();
    PSD_RETURN_IF_ERROR(checkSameRules({first.name, first.rules}, {peer.name, peer.rules}));
  }
  return {};
}

Status Mover::beginAtSources() {
  std::vector<kj::Maybe<schema::LeavingModel::Client>> leaving(from_.size());
  // The lead last: it notifies trainers of the move and makes them quiesce.
  for (size_t i = from_.size(); i-- > 0;) {
    auto request = from_[i].admin.startMoveRequest();
    request.setMove(move_);
    request.setTimeoutMs(static_cast<uint64_t>(order_.timeout.count()));
    request.setLead(KJ_ASSERT_NONNULL(terms_).getTerms().getDaemon());
    request.setHeartbeats(true);
    wire::writeDaemonAddresses(places_, request.initTo(static_cast<kj::uint>(places_.size())));
    auto begun = wait<schema::LeavingModel::Client>(
        from_[i].name,
        request.send().then(
            [](capnp::Response<schema::StartMoveResult> answer) -> Result<schema::LeavingModel::Client> {
              if (answer.isError()) return wire::readError(answer.getError());
              return answer.getLeaving();
            }));
    if (!begun.ok()) return begun.status();
    leaving[i] = kj::mv(*begun);
  }
  for (auto& each : leaving) leaving_.push_back(kj::mv(KJ_ASSERT_NONNULL(each)));
  return {};
}

kj::Promise<void> Mover::sendHeartbeats() {
  return timer().afterDelay(kMoveHeartbeatInterval.count() * kj::MILLISECONDS).then([this] {
    for (auto& service : leaving_) heartbeat(service);
    for (auto& service : arriving_) heartbeat(service);
    return sendHeartbeats();
  });
}

kj::Promise<Result<bool>> Mover::untilOneDisconnects(const Participant*& gone) {
  kj::Promise<Result<bool>> first = kj::NEVER_DONE;
  for (auto* const peers : {&from_, &to_}) {
    for (const Participant& peer : *peers) {
      first = first.exclusiveJoin(peer.client->onDisconnect().then([&peer, &gone]() -> Result<bool> {
        gone = &peer;
        return Error{ErrorCode::unavailable, "the connection broke"};
      }));
    }
  }
  return first;
}

void Mover::prepareVersions() {
  std::vector<VersionCarrier::Source> sources;
  for (Participant& peer : from_) sources.push_back({peer.name, peer.reading, peer.admin});
  std::vector<VersionCarrier::Target> targets;
  for (size_t j = 0; j < to_.size(); j++) targets.push_back({to_[j].name, arriving_[j], cut_[j].spec});
  versions_ = std::make_unique<VersionCarrier>(std::move(sources), std::move(targets), move_);
}

Result<std::optional<uint64_t>> Mover::copyVersion() {
  std::optional<uint64_t> left;
  auto copied =
      versions_->copyNext().then([&left](const Result<std::optional<uint64_t>>& outcome) -> Result<bool> {
        PSD_RETURN_IF_ERROR(outcome);
        left = *outcome;
        return true;
      });
  PSD_RETURN_IF_ERROR(waitForAll("while published versions were copied", kj::mv(copied)));
  report_.versions = versions_->copied();
  return left;
}

Status Mover::copyVersions(bool all) {
  if (!KJ_ASSERT_NONNULL(terms_).getTerms().hasVersions()) return {};
  const Stopwatch stopwatch;
  // A source that publishes as fast as versions are copied must not delay the move forever.
  std::optional<uint64_t> most;
  for (uint64_t i = 0; all || !most || i < *most; i++) {
    const auto left = copyVersion();
    if (!left.ok()) {
      if (all || left.error().code != ErrorCode::modelMismatch) return left.error();
      most = most.value_or(kVersionsMoreMax);  // one of several sources has replaced it
      continue;
    }
    if (!*left || **left == 0) break;
    if (!most) most = **left + 1 + kVersionsMoreMax;
  }
  if (!all) report_.versionSeconds = stopwatch.seconds();
  return {};
}

Status Mover::whenQuiesced() {
  const Stopwatch stopwatch;
  const auto until = std::min(deadline_, timer().now() + order_.patience.count() * kj::MILLISECONDS);
  for (size_t i = 0; i < from_.size(); i++) {
    auto answered = leaving_[i].quiescedRequest().send().then(
        [this, i](capnp::Response<schema::QuiescedResult> answer) -> Result<bool> {
          if (answer.isError()) return wire::readError(answer.getError());
          quiet_.push_back(kj::mv(answer));
          if (i > 0) return true;
          const auto in = quiet_.front().getQuiesced();
          worldSize_ = in.getWorldSize();
          for (const uint32_t rank : in.getDeparted()) departed_.push_back(rank);
          for (const uint32_t rank : in.getRanks()) ranks_.push_back(rank);
          return true;
        });
    // A trainer that waits for a dead daemon does not quiesce at the others.
    const Participant* gone = nullptr;
    const auto quiet = wait<bool>(from_[i].name, answered.exclusiveJoin(untilOneDisconnects(gone)), until);
    if (quiet.ok()) continue;
    if (gone != nullptr) {
      return {ErrorCode::unavailable,
              fmt::format("{}: the connection broke while trainers quiesced", gone->name)};
    }
    if (quiet.error().code != ErrorCode::deadlineExceeded) return quiet.status();
    return {ErrorCode::deadlineExceeded,
            fmt::format("{}: not all trainers quiesced within --patience ({}); its psd events name them",
                        from_[i].name, durationText(order_.patience))};
  }
  report_.trainers = static_cast<uint32_t>(ranks_.size());
  report_.quiesceSeconds = stopwatch.seconds();
  // A trainer with other terms may have joined before the move began.
  return check(quiet_.front().getQuiesced().getTerms());
}

Status Mover::transferModel() {
  kj::Vector<kj::Promise<Status>> given;
  for (size_t j = 0; j < to_.size(); j++) {
    for (size_t i = 0; i < from_.size(); i++) {
      auto sink = arriving_[j].sinkRequest();
      sink.setPart(static_cast<uint32_t>(i));
      const ModelPartition& has = from_[i].has;
      const uint64_t first = std::max(has.begin, cut_[j].begin);
      const uint64_t end = std::min(has.begin + has.count, cut_[j].begin + cut_[j].count);
      auto request = leaving_[i].giveRequest();
      if (first < end) {
        request.setBegin(first - has.begin);
        request.setCount(end - first);
      }
      request.setSink(sink.send().getSink());
      given.add(request.send().then([name = fmt::format("{} to {}", from_[i].name, to_[j].name)](
                                        capnp::Response<schema::LeavingModel::GiveResults> answer) -> Status {
        const Status status = wire::readStatus(answer.getStatus());
        if (status.ok()) return status;
        return {status.error().code, name + ": " + status.message()};
      }));
    }
  }
  auto all = kj::joinPromises(given.releaseAsArray()).then([](kj::Array<Status> done) -> Result<bool> {
    for (const Status& status : done) PSD_RETURN_IF_ERROR(status);
    return true;
  });
  return waitForAll("while the model was transferred", kj::mv(all));
}

Status Mover::install() {
  kj::Vector<kj::Promise<Result<uint64_t>>> installed;
  for (size_t j = 0; j < to_.size(); j++) {
    auto request = arriving_[j].installRequest();
    request.setWorldSize(worldSize_);
    auto departed = request.initDeparted(static_cast<kj::uint>(departed_.size()));
    for (kj::uint k = 0; k < departed.size(); k++) departed.set(k, departed_[k]);
    auto ranks = request.initRanks(static_cast<kj::uint>(ranks_.size()));
    for (kj::uint k = 0; k < ranks.size(); k++) ranks.set(k, ranks_[k]);
    if (quiet_.front().getQuiesced().hasVersions()) {
      PSD_RETURN_IF_ERROR(versions_->continueAt(j, quiet_, request.initVersions()));
    }
    installed.add(request.send().then(
        [name = to_[j].name](capnp::Response<schema::InstallResult> answer) -> Result<uint64_t> {
          if (!answer.isError()) return answer.getRows();
          const Error error = wire::readError(answer.getError());
          return Error{error.code, name + ": " + error.message};
        }));
  }
  auto all = kj::joinPromises(installed.releaseAsArray())
                 .then([this](kj::Array<Result<uint64_t>> done) -> Result<bool> {
                   for (const auto& rows : done) {
                     PSD_RETURN_IF_ERROR(rows);
                     report_.rows += *rows;
                   }
                   return true;
                 });
  return waitForAll("while the model was installed", kj::mv(all));
}

void Mover::giveUp() {
  // A target that misses this asks the lead once this connection is gone.
  const auto soon = timer().now() + kGiveUpTime;
  for (size_t j = 0; j < arriving_.size(); j++) {
    auto told = arriving_[j].giveUpRequest().send().then([](auto&&) -> Result<bool> { return true; });
    static_cast<void>(wait<bool>(to_[j].name, kj::mv(told), soon));
  }
}

Status Mover::commit() {
  const Status committed = tell(from_.front().name, leaving_.front().commitRequest());
  if (committed.ok()) return {};
  const bool unknown = committed.error().code == ErrorCode::unavailable ||
                       committed.error().code == ErrorCode::deadlineExceeded;
  if (!unknown) {
    giveUp();
    return {committed.error().code, fmt::format("{}; {}", committed.message(), kAborted)};
  }
  return {
      committed.error().code,
      fmt::format(
          "{}, during the commit, so its outcome is unknown: if it succeeded, that daemon redirects "
          "trainers once restarted, and repeating this command finishes the move; if not, they stay there",
          committed.message())};
}

void Mover::notifyTargets() {
  for (size_t j = 0; j < to_.size(); j++) {
    const Status told = tell(to_[j].name, arriving_[j].commitRequest());
    if (!told.ok())
      report_.notes.push_back(told.message() + "; the next trainer to join reports the commit to it");
  }
}

Result<MoveReport> Mover::commitAgain() {
  for (Participant& peer : to_) {
    auto arriving = arriveAt(peer, from_.front().move, 0);
    if (!arriving.ok()) return arriving.error();
    PSD_RETURN_IF_ERROR(tell(peer.name, arriving->commitRequest()));
  }
  report_.before = true;
  return report_;
}

Result<MoveReport> Mover::run() {
  if (const Status connected = connectAll(); !connected.ok()) {
    return Error{connected.error().code, connected.message() + "; nothing was done"};
  }
  if (from_.front().move != 0) {
    if (from_.front().movedTo == places_) return commitAgain();
    return Error{ErrorCode::invalidArgument,
                 from_.front().name + ": the model has already moved to other daemons"};
  }
  heartbeats_ = sendHeartbeats().eagerlyEvaluate(nullptr);
  const auto prepare = [this]() -> Status {
    PSD_RETURN_IF_ERROR(readModelSpecs());
    PSD_RETURN_IF_ERROR(fetchTerms());
    PSD_RETURN_IF_ERROR(arriveAtTargets());
    prepareVersions();
    PSD_RETURN_IF_ERROR(check(KJ_ASSERT_NONNULL(terms_).getTerms()));
    PSD_RETURN_IF_ERROR(copyVersions(false));
    PSD_RETURN_IF_ERROR(beginAtSources());
    PSD_RETURN_IF_ERROR(whenQuiesced());
    return {};
  };
  const auto transferAndInstall = [this]() -> Status {
    PSD_RETURN_IF_ERROR(copyVersions(true));
    PSD_RETURN_IF_ERROR(transferModel());
    return install();
  };
  Status status = prepare();
  const Stopwatch stopwatch;
  if (status.ok()) status = transferAndInstall();
  if (!status.ok()) {
    leaving_.clear();  // the move can no longer be committed
    giveUp();
    return Error{status.error().code, fmt::format("{}; {}", status.message(), kAborted)};
  }
  PSD_RETURN_IF_ERROR(commit());
  report_.transferSeconds = stopwatch.seconds();
  notifyTargets();
  for (size_t i = 1; i < from_.size(); i++) {
    const Status told = tell(from_[i].name, leaving_[i].commitRequest());
    if (!told.ok())
      report_.notes.push_back(told.message() + "; stop that daemon, it no longer serves the model");
  }
  return report_;
}

}  // namespace

Result<MoveReport> moveModel(const MoveOrder& order) {
  Mover mover(order);
  return mover.run();
}

}  // namespace psd
