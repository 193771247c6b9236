#include "trainer/client/session.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/os/socket.h"
#include "common/types/model_layout.h"
#include "trainer/client/attempts.h"

namespace psd {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

/// Number of row shards that hold the rows of a table; if tables differ, the maximum.
uint32_t rowShardsOfTable(const std::vector<RowShardTerms>& shards) {
  std::map<uint32_t, uint32_t> ofTable;
  uint32_t most = 1;
  for (const RowShardTerms& shard : shards) {
    for (const uint32_t table : shard.tables) most = std::max(most, ++ofTable[table]);
  }
  return most;
}

}  // namespace

Session::Session(const ClientOptions& options, Links& links, Notices& notices, ClientLock& lock)
    : options_(options),
      links_(links),
      notices_(notices),
      lock_(lock),
      incarnation_(options.incarnation != 0 ? options.incarnation : drawId()) {}

Status Session::connectOnce(const std::string& server, milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  PSD_ASSIGN_OR_RETURN(Address address, parseAddress(server));
  PSD_ASSIGN_OR_RETURN(OwnFd fd, lock_.outside([&] { return connectTo(address, timeout); }));
  PSD_ASSIGN_OR_RETURN(identity_,
                       links_.first().open(lock_, std::move(fd), address, options_, timeUntil(deadline)));
  links_.countChannel();
  server_ = server;
  return {};
}

Status Session::connect(milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  Status last;
  const size_t first = first_;
  for (size_t i = 0, servers = options_.servers.size(); i < servers; i++) {
    connected_ = (first + i) % servers;
    // One of several servers that does not answer must not delay the others for long, nor the end of a wait.
    milliseconds share = remainingUntil(deadline) / static_cast<int64_t>(servers - i);
    if (servers > 1 || options_.keepWaiting) share = std::min(share, kAttemptTimeout);
    last = connectOnce(options_.servers[connected_], std::max(share, milliseconds(1)));
    if (last.ok() || !shouldReconnect(last.error())) return last;
  }
  return last;
}

Result<JoinAnswer> Session::requestJoin(const JoinRequest& request, milliseconds timeout) {
  const auto join = [request, model = trainer_->model](Channel& channel) {
    return channel.join(request, model);
  };
  // The channel itself detects a daemon that stops answering.
  if (timeout.count() == 0) {
    return notices_.awaitAnswer(links_.first().start<JoinAnswer>(join), "the daemon's answer to the join");
  }
  return links_.first().call<Result<JoinAnswer>>(lock_, [&](Channel& channel, kj::Timer& timer) {
    return timer.timeoutAfter(timeout.count() * kj::MILLISECONDS, join(channel));
  });
}

Status Session::join(const std::map<Step, HeldSamples>& held, milliseconds timeout) {
  // A trainer that joins again requests the codec agreed earlier, so that pushes can be resent unchanged.
  const bool rejoining = joined_.daemon != 0;
  JoinRequest request{trainer_->membership,
                      incarnation_,
                      rejoining ? joined_.daemon : movedFrom_.daemon,
                      {rejoining ? info_.codec : options_.codec, options_.pullCodec},
                      {},
                      options_.averages,
                      options_.optimizer,
                      options_.bridges,
                      movedFrom_.move,
                      joined_.sliceElements};
  for (const auto& [step, samples] : held) request.held.push_back(samples);
  const uint64_t lastDaemon = joined_.daemon;
  pendingMove_->forget();
  links_.first().look([this](Channel& channel) { channel.setPendingMove(pendingMove_); });
  PSD_ASSIGN_OR_RETURN(joined_, requestJoin(request, timeout));
  if (usedRowsElsewhere(lastDaemon) && !joined_.resumedState && !options_.acceptLostRows) {
    return {ErrorCode::modelMismatch,
            "the daemon came back without the rows of the embedding tables, which `durability` of type "
            "\"log\" keeps; "
            "restart the trainers, or let them continue with initial rows (psd-trainer "
            "--accept-lost-rows; acceptLostRows and accept_lost_rows in programs)"};
  }
  trainer_->membership = {joined_.rank, joined_.worldSize};  // for later joins
  elements_ = ModelLayout(trainer_->model).totalElements();
  tables_ = trainer_->model.tables;
  JoinInfo info = describe();
  if (rejoining && info.allReduce != info_.allReduce) {
    return {
        ErrorCode::invalidArgument,
        fmt::format("the daemon came back with policy '{}', whose averaging of gradients differs from what "
                    "this trainer joined with; restart this trainer",
                    info.policy)};
  }
  if (rejoining && info.local != info_.local) {
    return {ErrorCode::invalidArgument,
            fmt::format("the daemon came back with policy '{}', whose local steps differ from those that "
                        "this trainer joined with; restart this trainer",
                        info.policy)};
  }
  if (rejoining && info.local.streams() && info.shards != info_.shards) {
    return {
        ErrorCode::invalidArgument,
        "the daemon came back with the model cut into different shards, and this trainer exchanges them in "
        "fragments, or with a delay; restart it"};
  }
  info_ = std::move(info);
  info_.rank = joined_.rank;
  info_.worldSize = joined_.worldSize;
  info_.model = trainer_->model;
  info_.daemon = joined_.daemon;
  info_.daemons = {joined_.daemon};
  PSD_RETURN_IF_ERROR(awaitModel());
  PSD_RETURN_IF_ERROR(attachOthers(timeout));
  watchOthers();
  return {};
}

bool Session::usedRowsElsewhere(uint64_t lastDaemon) const {
  if (lastDaemon != 0) return rowsSeen_ && joined_.daemon != lastDaemon;
  return !options_.rowsAt.empty() && !trainer_->model.tables.empty() &&
         std::ranges::find(options_.rowsAt, joined_.daemon) == options_.rowsAt.end();
}

void Session::watchOthers() {
  watches_.clear();
  if (joined_.term == 0) return;
  for (size_t i = 0; i < options_.servers.size(); i++) {
    if (i == connected_) continue;
    const std::string& server = options_.servers[i];
    const auto takenOver = [this, i, server] {
      first_ = i;
      links_.first().failAsync({ErrorCode::unavailable, server + " has taken over"});
    };
    const auto refused = [this, server](const std::string& why) {
      notices_.queueLine(
          fmt::format("{} does not admit this trainer, which could not continue there after a takeover: {}",
                      server, why));
    };
    auto watch = TakeoverWatch::begin(options_, server, {joined_.term, joined_.daemon}, {takenOver, refused});
    if (watch.ok()) watches_.push_back(*std::move(watch));
  }
}

Status Session::awaitModel() {
  StartRole role = StartRole::initializeModel;
  if (!joined_.mustInitialize) {
    const auto answer =
        links_.first().start<StartRole>([](Channel& channel) { return channel.awaitModel(); });
    PSD_ASSIGN_OR_RETURN(
        role, notices_.awaitAnswer(answer, "the model's initial values, which another trainer sends"));
  }
  if (role != StartRole::initializeModel) return {};
  const ConstArenaValues values = trainer_->initialValues();
  PSD_RETURN_IF_ERROR(checkValues("the initial values", values));
  PSD_RETURN_IF_ERROR(links_.first().call<Result<PushInfo>>(
      lock_, [&](Channel& channel, kj::Timer&) { return channel.initializeModel(values, step_); }));
  info_.initializedModel = true;
  return {};
}

Status Session::attachOthers(milliseconds timeout) {
  const SessionTerms terms = links_.first().look([](Channel& channel) { return channel.terms(); });
  uint32_t links = std::min(options_.connections, info_.shardCount + info_.rowShardCount);
  // Memory is shared with the first connection only.
  for (const std::string& way : {info_.pullTransport, info_.pushTransport, info_.rowTransport}) {
    if (!way.empty() && way != "rpc") links = 1;
  }
  timeout = timeout.count() == 0 ? options_.connectTimeout : std::min(timeout, kAttemptTimeout);
  for (uint32_t i = 1; i < links; i++) {
    PSD_ASSIGN_OR_RETURN(Link* const link, links_.make(i));
    if (Status status = attach(*link, terms, timeout); !status.ok()) {
      return {status.error().code, fmt::format("connection {} of {}: {}", i + 1, links, status.message())};
    }
  }
  links_.divide(links);
  info_.connections = links;
  return {};
}

Status Session::attach(Link& link, const SessionTerms& terms, milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  PSD_ASSIGN_OR_RETURN(Address address, parseAddress(server_));
  PSD_ASSIGN_OR_RETURN(OwnFd fd, lock_.outside([&] { return connectTo(address, timeout); }));
  PSD_RETURN_IF_ERROR(link.open(lock_, std::move(fd), address, options_, timeUntil(deadline)));
  return link.call<Status>(lock_, [&](Channel& channel, kj::Timer& timer) {
    return timer.timeoutAfter(timeUntil(deadline).count() * kj::MILLISECONDS, channel.attach(terms));
  });
}

Status Session::observe(milliseconds timeout) {
  const auto observe = [model = *observed_, codec = options_.pullCodec](Channel& channel) {
    return channel.observe(model, codec);
  };
  const auto answer = [&]() -> Result<ModelSpec> {
    if (timeout.count() == 0) {
      return notices_.awaitAnswer(links_.first().start<ModelSpec>(observe), "the daemon's answer");
    }
    return links_.first().call<Result<ModelSpec>>(lock_, [&](Channel& channel, kj::Timer& timer) {
      return timer.timeoutAfter(timeout.count() * kj::MILLISECONDS, observe(channel));
    });
  };
  PSD_ASSIGN_OR_RETURN(ModelSpec served, answer());
  moveNotification_ = links_.first().look([](Channel& channel) { return channel.watchMove(); });
  elements_ = ModelLayout(served).totalElements();
  tables_ = served.tables;
  info_ = describe();
  info_.model = served;
  observed_ = std::move(served);
  return {};
}

JoinInfo Session::describe() {
  links_.useFirst();
  JoinInfo info;
  links_.first().look([&](Channel& channel) {
    const SessionTerms& terms = channel.terms();
    info.policy = terms.policy;
    info.local = terms.localSteps;
    info.allReduce = terms.allReduce;
    rules_ = terms.rules;
    info.device = terms.device;
    info.optimizer = terms.optimizer;
    info.takesHyperparameters = terms.takesHyperparameters;
    info.shards = terms.plan.shards;
    info.shardCount = static_cast<uint32_t>(terms.plan.shards.size());
    info.rowShardCount = static_cast<uint32_t>(terms.rowShards.size());
    rowShards_ = rowShardsOfTable(terms.rowShards);
    info.pullTransport = channel.transports().pullName();
    info.pushTransport = channel.transports().pushName();
    if (!terms.rowShards.empty()) info.rowTransport = channel.transports().rowName();
    rowMemory_->use(channel.transports().rowBlocks());
    if (terms.codec) info.codec = terms.codec->spec();
    if (terms.pullCodec && !links_.sharedModel()) info.pullCodec = terms.pullCodec->spec();
    if (const auto& deltas = terms.localSteps.deltas; !deltas.empty() && channel.pullsDeltas()) {
      info.pullCodec = "deltas in " + deltas;
    }
  });
  info.serverVersion = identity_.version;
  return info;
}

Status Session::checkFragment(uint32_t fragment) const {
  if (fragment < info_.local.fragments) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("there is no fragment {}, the model has {}", fragment, info_.local.fragments)};
}

Status Session::checkHyperparameters(const ModelHyperparameters* given) const {
  if (given == nullptr || given->isValid(elements_.value_or(0), tables_.size())) return {};
  return {
      ErrorCode::invalidArgument,
      fmt::format(
          "the hyperparameters of a push have sets of equal sizes, and runs that name them and cover the {} "
          "elements and {} tables of the model",
          elements_.value_or(0), tables_.size())};
}

Status Session::checkValues(const char* what, ConstArenaValues values) const {
  if (values.size() != elements_) {
    return {ErrorCode::invalidArgument, fmt::format("{} has {} elements; the model's layout has {}", what,
                                                    values.size(), elements_.value_or(0))};
  }
  // Messages reference values in place.
  if (const auto place = reinterpret_cast<uintptr_t>(values.data()) % kValueAlignment; place != 0) {
    return {
        ErrorCode::invalidArgument,
        fmt::format("{} begins {} bytes off a multiple of {} in memory, as a slice of an array may: copy it "
                    "to a new array",
                    what, place, kValueAlignment)};
  }
  return {};
}

}  // namespace psd
