#include "server/rpc/move_client.h"

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
#include "server/move/move_beats.h"
#include "server/move/move_mark.h"

namespace psd {
namespace {

constexpr const char* kStays = "the move was given up, and trainers go on at the daemons of before";

constexpr size_t kReasonBytesMax = 3000;
constexpr kj::Duration kGiveUpTime = 2 * kj::SECONDS;

/// A daemon that takes part, and what it can be asked.
struct Participant {
  std::string name;
  wire::Socket socket;
  std::unique_ptr<capnp::TwoPartyClient> client;
  schema::Reading::Client reading = nullptr;
  schema::Admin::Client admin = nullptr;
  DaemonPlaces daemons, movedTo;
  uint32_t index = 0;
  uint64_t move = 0;
  ModelPartition has = {};  // of the whole model
  std::string rules = {};   // of one that the model is to come to
};

/// One move, on its way. Owned by one thread.
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
  /// What the promise comes to; an Error that begins with `who` where it fails, or takes too long.
  template <class T>
  Result<T> wait(const std::string& who, kj::Promise<Result<T>> promise, kj::TimePoint until);
  template <class T>
  Result<T> wait(const std::string& who, kj::Promise<Result<T>> promise) {
    return wait(who, kj::mv(promise), deadline_);
  }
  /// As wait(), of what several daemons are asked at once; names the one whose connection broke.
  Status waitForAll(const std::string& when, kj::Promise<Result<bool>> promise);
  /// Waits for a call that is answered with a status alone.
  template <class Request>
  Status tell(const std::string& who, Request&& request);

  Result<Participant> connect(const Address& address);
  Status connectAll();
  Status checkPlaces();
  Status lookAtModel();
  Status askTerms();
  /// Whether the new daemons suit the model and those who train it.
  Status check(schema::MoveTerms::Reader terms);
  /// See Admin.arrive in the schema.
  Result<schema::ArrivingModel::Client> arriveAt(Participant& peer, uint64_t move, uint32_t parts);
  Status arriveAtAll();
  Status beginAtAll();
  /// Is done when a connection of the command has broken; `gone`: of whom.
  /// Lets those who take part hear, all the time, that the command is there.
  kj::Promise<void> keepBeating();
  kj::Promise<Result<bool>> untilOneIsGone(const Participant*& gone);
  Status whenQuiet();
  Status travel();
  Status settle();
  /// The move never counts: the new daemons forget what they have got.
  void giveUp();
  /// From the lead's commit on nothing is given up.
  Status commit();
  Result<MoveReport> commitAgain();
  void tellNew();

  const MoveOrder& order_;
  kj::AsyncIoContext io_;
  const kj::TimePoint deadline_;
  const uint64_t move_;
  std::vector<Participant> from_, to_;
  DaemonPlaces places_;  // of `to`
  ModelSpec whole_;
  kj::Maybe<capnp::Response<schema::MoveTermsResult>> terms_;  // the lead's
  kj::Maybe<capnp::Response<schema::QuietResult>> quiet_;
  std::vector<ModelPartition> cut_;  // by new daemon
  std::vector<schema::LeavingModel::Client> leaving_;
  std::vector<schema::ArrivingModel::Client> arriving_;
  uint32_t worldSize_ = 0;
  std::vector<uint32_t> departed_, ranks_;
  MoveReport report_;
  kj::Promise<void> beating_ = nullptr;  // last: it uses all of the above
};

template <class Service>
void beat(Service& service) {
  service.beatRequest().send().ignoreResult().detach([](kj::Exception&&) {});  // a daemon of an older version
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
      return Error{ErrorCode::protocolMismatch, who + ": this daemon's version does not know of moves"};
    }
    return Error{ErrorCode::unavailable, who + ": the connection broke"};
  }
}

Status Mover::waitForAll(const std::string& when, kj::Promise<Result<bool>> promise) {
  Status status = wait<bool>(when, kj::mv(promise)).status();
  if (status.ok()) return status;
  // Who lost a daemon may tell so before the connection from here to that daemon has broken.
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
        if (!answer.hasAdmin()) return wire::mayNot(peer.name, "admin", answer);
        PSD_ASSIGN_OR_RETURN(peer.daemons, wire::readDaemons(peer.name, answer));
        PSD_ASSIGN_OR_RETURN(peer.movedTo, wire::readPlaces(peer.name, answer.getMovedTo()));
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
    if (from_.front().move != 0) break;  // the others are not asked any more
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
        fmt::format("{}: this one says that it is daemon {} of {}; all that serve a model are given the same "
                    "`daemons`, each its own `index`",
                    to_[i].name, to_[i].index, std::max<size_t>(to_[i].daemons.size(), 1))};
  }
  return {};
}

Status Mover::lookAtModel() {
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

Status Mover::askTerms() {
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
  for (size_t j = 0; j < to_.size(); j++) {
    auto request = arriving_[j].checkRequest();
    request.setTerms(terms);
    // And where the command has reached it.
    const auto told = terms.getAddresses();
    const kj::uint count = std::min<kj::uint>(told.size(), kMoveLeadAddressesMax - 1);
    auto addresses = request.getTerms().initAddresses(count + 1);
    for (kj::uint i = 0; i < count; i++) addresses.set(i, told[i]);
    addresses.set(count, from_.front().name.c_str());
    wire::writeModel(whole_, request.initModel());
    PSD_RETURN_IF_ERROR(tell(to_[j].name, kj::mv(request)));
  }
  return {};
}

Result<schema::ArrivingModel::Client> Mover::arriveAt(Participant& peer, uint64_t move, uint32_t parts) {
  auto request = peer.admin.arriveRequest();
  request.setMove(move);
  request.setParts(parts);
  request.setBeats(true);
  return wait<schema::ArrivingModel::Client>(
      peer.name,
      request.send().then(
          [&peer](capnp::Response<schema::ArriveResult> answer) -> Result<schema::ArrivingModel::Client> {
            if (answer.isError()) return wire::readError(answer.getError());
            peer.rules = wire::textIn(answer.getRules());
            return answer.getArriving();
          }));
}

Status Mover::arriveAtAll() {
  for (Participant& peer : to_) {
    auto arriving = arriveAt(peer, move_, static_cast<uint32_t>(from_.size()));
    if (!arriving.ok()) return arriving.status();
    arriving_.push_back(kj::mv(*arriving));
    const Participant& first = to_.front();
    PSD_RETURN_IF_ERROR(checkSameRules({first.name, first.rules}, {peer.name, peer.rules}));
  }
  return {};
}

Status Mover::beginAtAll() {
  std::vector<kj::Maybe<schema::LeavingModel::Client>> leaving(from_.size());
  // The lead last: by it trainers learn of the move, and step aside at all.
  for (size_t i = from_.size(); i-- > 0;) {
    auto request = from_[i].admin.beginMoveRequest();
    request.setMove(move_);
    request.setMostMs(static_cast<uint64_t>(order_.timeout.count()));
    request.setLead(KJ_ASSERT_NONNULL(terms_).getTerms().getDaemon());
    request.setBeats(true);
    wire::writePlaces(places_, request.initTo(static_cast<kj::uint>(places_.size())));
    auto begun = wait<schema::LeavingModel::Client>(
        from_[i].name,
        request.send().then(
            [](capnp::Response<schema::BeginMoveResult> answer) -> Result<schema::LeavingModel::Client> {
              if (answer.isError()) return wire::readError(answer.getError());
              return answer.getLeaving();
            }));
    if (!begun.ok()) return begun.status();
    leaving[i] = kj::mv(*begun);
  }
  for (auto& each : leaving) leaving_.push_back(kj::mv(KJ_ASSERT_NONNULL(each)));
  return {};
}

kj::Promise<void> Mover::keepBeating() {
  return timer().afterDelay(kMoveBeat.count() * kj::MILLISECONDS).then([this] {
    for (auto& service : leaving_) beat(service);
    for (auto& service : arriving_) beat(service);
    return keepBeating();
  });
}

kj::Promise<Result<bool>> Mover::untilOneIsGone(const Participant*& gone) {
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

Status Mover::whenQuiet() {
  const Stopwatch stopwatch;
  const auto until = std::min(deadline_, timer().now() + order_.patience.count() * kj::MILLISECONDS);
  for (size_t i = 0; i < from_.size(); i++) {
    auto answered = leaving_[i].quietRequest().send().then(
        [this, i](capnp::Response<schema::QuietResult> answer) -> Result<bool> {
          if (answer.isError()) return wire::readError(answer.getError());
          if (i > 0) return true;
          const auto in = answer.getQuiet();
          worldSize_ = in.getWorldSize();
          for (const uint32_t rank : in.getDeparted()) departed_.push_back(rank);
          for (const uint32_t rank : in.getRanks()) ranks_.push_back(rank);
          quiet_ = kj::mv(answer);
          return true;
        });
    // A trainer that waits for a daemon that died does not step aside at the others.
    const Participant* gone = nullptr;
    const auto quiet = wait<bool>(from_[i].name, answered.exclusiveJoin(untilOneIsGone(gone)), until);
    if (quiet.ok()) continue;
    if (gone != nullptr) {
      return {ErrorCode::unavailable,
              fmt::format("{}: the connection broke while trainers stepped aside", gone->name)};
    }
    if (quiet.error().code != ErrorCode::deadlineExceeded) return quiet.status();
    return {ErrorCode::deadlineExceeded,
            fmt::format(
                "{}: not all trainers have stepped aside within --patience ({}); its psd events name them",
                from_[i].name, durationText(order_.patience))};
  }
  report_.trainers = static_cast<uint32_t>(ranks_.size());
  report_.asideSeconds = stopwatch.seconds();
  // Somebody may have come until the move began, who is not as the others.
  return check(KJ_ASSERT_NONNULL(quiet_).getQuiet().getTerms());
}

Status Mover::travel() {
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
  return waitForAll("while the model travelled", kj::mv(all));
}

Status Mover::settle() {
  kj::Vector<kj::Promise<Result<uint64_t>>> settled;
  for (size_t j = 0; j < to_.size(); j++) {
    auto request = arriving_[j].settleRequest();
    request.setWorldSize(worldSize_);
    auto departed = request.initDeparted(static_cast<kj::uint>(departed_.size()));
    for (kj::uint k = 0; k < departed.size(); k++) departed.set(k, departed_[k]);
    auto ranks = request.initRanks(static_cast<kj::uint>(ranks_.size()));
    for (kj::uint k = 0; k < ranks.size(); k++) ranks.set(k, ranks_[k]);
    settled.add(request.send().then(
        [name = to_[j].name](capnp::Response<schema::SettleResult> answer) -> Result<uint64_t> {
          if (!answer.isError()) return answer.getRows();
          const Error error = wire::readError(answer.getError());
          return Error{error.code, name + ": " + error.message};
        }));
  }
  auto all = kj::joinPromises(settled.releaseAsArray())
                 .then([this](kj::Array<Result<uint64_t>> done) -> Result<bool> {
                   for (const auto& rows : done) {
                     PSD_RETURN_IF_ERROR(rows);
                     report_.rows += *rows;
                   }
                   return true;
                 });
  return waitForAll("while the model was put in place", kj::mv(all));
}

void Mover::giveUp() {
  // Who does not hear it asks the lead once this connection is gone.
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
    return {committed.error().code, fmt::format("{}: {}", committed.message(), kStays)};
  }
  return {
      committed.error().code,
      fmt::format("{}, just when the move was to count: where it does, that daemon tells trainers so once it "
                  "is started again, and so does this command, given again; where not, trainers go on there",
                  committed.message())};
}

void Mover::tellNew() {
  for (size_t j = 0; j < to_.size(); j++) {
    const Status told = tell(to_[j].name, arriving_[j].commitRequest());
    if (!told.ok())
      report_.notes.push_back(told.message() + "; a trainer that comes tells it that the move is done");
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
                 from_.front().name + ": the model has moved from there already, to others"};
  }
  beating_ = keepBeating().eagerlyEvaluate(nullptr);
  const auto prepare = [this]() -> Status {
    PSD_RETURN_IF_ERROR(lookAtModel());
    PSD_RETURN_IF_ERROR(askTerms());
    PSD_RETURN_IF_ERROR(arriveAtAll());
    PSD_RETURN_IF_ERROR(check(KJ_ASSERT_NONNULL(terms_).getTerms()));
    PSD_RETURN_IF_ERROR(beginAtAll());
    PSD_RETURN_IF_ERROR(whenQuiet());
    return {};
  };
  const auto carry = [this]() -> Status {
    PSD_RETURN_IF_ERROR(travel());
    return settle();
  };
  Status status = prepare();
  const Stopwatch stopwatch;
  if (status.ok()) status = carry();
  if (!status.ok()) {
    leaving_.clear();  // from now on nobody can let it count
    giveUp();
    return Error{status.error().code, fmt::format("{}; {}", status.message(), kStays)};
  }
  PSD_RETURN_IF_ERROR(commit());
  report_.travelSeconds = stopwatch.seconds();
  tellNew();
  for (size_t i = 1; i < from_.size(); i++) {
    const Status told = tell(from_[i].name, leaving_[i].commitRequest());
    if (!told.ok())
      report_.notes.push_back(told.message() + "; stop that daemon, which serves nobody any more");
  }
  return report_;
}

}  // namespace

Result<MoveReport> moveModel(const MoveOrder& order) {
  Mover mover(order);
  return mover.run();
}

}  // namespace psd
