#include "server/rpc/trainer_session.h"

#include <chrono>

#include "common/wire/convert.h"
#include "server/policy/store_promise.h"
#include "server/store/finite.h"

namespace psd {
namespace {

template <class Context>
kj::Promise<void> acknowledge(Context context, const Status& status) {
  wire::writeStatus(status, context.getResults().initStatus());
  return kj::READY_NOW;
}

Error nonFinite(uint32_t shard, uint64_t offset) {
  return {ErrorCode::nonFinite, "the slice at element " + std::to_string(offset) + " of shard " +
                                    std::to_string(shard) + " holds NaN or infinity"};
}

Error notAsked() { return {ErrorCode::invalidArgument, "this trainer was not asked for the initial values"}; }

}  // namespace

TrainerSession::TrainerSession(std::shared_ptr<Connection> connection, Joined joined)
    : CountedService(std::move(connection)),
      loop_(connection_->loop()),
      session_(joined.session),
      model_(joined.model),
      counters_(joined.counters),
      pulls_(connection_, joined.model, joined.counters),
      role_(joined.role),
      initialValues_(model_->store->shardCount()),
      pushes_(model_->store->shardCount()) {
  connection_->trainerCame();
}

TrainerSession::~TrainerSession() noexcept(false) {
  connection_->trainerWent();
  if (left_ || !loop_.running()) return;
  loop_.detach(
      loop_.onControl([session = session_](Control& control) { control.depart(session, Departure::lost); }));
}

void TrainerSession::seen() {
  using namespace std::chrono;
  auto now = duration_cast<milliseconds>(steady_clock::now().time_since_epoch());
  counters_->lastSeenMs.set(static_cast<uint64_t>(now.count()));
}

kj::Promise<void> TrainerSession::pull(PullContext context) {
  seen();
  if (role_ != ModelStart::Role::go || left_) {
    wire::writeError({ErrorCode::notReady, left_ ? "this trainer has left" : "the model has no values yet"},
                     context.getResults().initError());
    return kj::READY_NOW;
  }
  return pulls_.pull(context);
}

Status TrainerSession::mayInitialize(uint32_t shard, uint64_t offset, std::span<const float> values) {
  if (role_ != ModelStart::Role::bringValues) {
    return notAsked();
  }
  PSD_RETURN_IF_ERROR(checkSlice(*model_, loop_.environment().config.limits, shard, offset, values.size()));
  if (!allFinite(values)) return nonFinite(shard, offset);
  if (!initialValues_[shard].add(offset, values.size())) {
    return {ErrorCode::badSlice, "initial values for element " + std::to_string(offset) + " of shard " +
                                     std::to_string(shard) + " came twice"};
  }
  return {};
}

kj::Promise<void> TrainerSession::initialize(InitializeContext context) {
  seen();
  auto params = context.getParams();
  auto values = wire::floatsIn(params.getValues());
  Status status =
      values.ok() ? mayInitialize(params.getShard(), params.getOffset(), *values) : values.status();
  if (!status.ok()) {
    countRefusal(status.error());
    return acknowledge(context, status);
  }
  Shard& shard = model_->store->shard(params.getShard());
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().write(loop_.laneFor(model_, shard), params.getOffset(),
                                                      *values, std::move(done));
                              })
      .then([context](Status written) mutable { return acknowledge(context, written); });
}

kj::Promise<void> TrainerSession::initialized(InitializedContext context) {
  seen();
  if (role_ != ModelStart::Role::bringValues) return acknowledge(context, notAsked());
  for (size_t i = 0; i < initialValues_.size(); i++) {
    uint64_t elements = model_->store->shard(i).range().count;
    if (initialValues_[i].covered() == elements) continue;
    return acknowledge(context,
                       {ErrorCode::badSlice, "shard " + std::to_string(i) + " has initial values for " +
                                                 std::to_string(initialValues_[i].covered()) + " of its " +
                                                 std::to_string(elements) + " elements"});
  }
  return loop_.onControl([session = session_](Control& control) { return control.initialized(session); })
      .then([this, context](Status status) mutable {
        if (status.ok()) role_ = ModelStart::Role::go;
        return acknowledge(context, status);
      });
}

kj::Promise<void> TrainerSession::awaitModel(AwaitModelContext context) {
  seen();
  context.allowCancellation();  // it may be parked for long; the session ends with the connection
  return loop_.onControl([session = session_](Control& control) { return control.awaitModel(session); })
      .then([this, context](Result<ModelStart::Role> role) mutable {
        auto results = context.getResults();
        if (!role.ok()) {
          wire::writeError(role.error(), results.initError());
          return;
        }
        role_ = *role;
        if (role_ == ModelStart::Role::go) {
          results.setReady();
        } else {
          results.setMustInitialize();
        }
      });
}

Status TrainerSession::checkPush(schema::Trainer::PushParams::Reader params,
                                 std::span<const float> gradient) const {
  if (left_ || role_ != ModelStart::Role::go) {
    return {ErrorCode::notReady, left_ ? "this trainer has left" : "the model has no values yet"};
  }
  PSD_RETURN_IF_ERROR(checkSlice(*model_, loop_.environment().config.limits, params.getShard(),
                                 params.getOffset(), gradient.size()));
  if (!allFinite(gradient)) return nonFinite(params.getShard(), params.getOffset());
  return {};
}

Result<std::shared_ptr<TrainerSession::OpenPush>> TrainerSession::openPush(
    schema::Trainer::PushParams::Reader params, uint64_t count) {
  auto& current = pushes_[params.getShard()];
  Step step{params.getStep()};
  if (!current || current->step < step) {
    // Dropping a policy's half-gathered update is what a trainer asks for when it goes on without it.
    if (loop_.environment().draining) {
      return Error{ErrorCode::shuttingDown, "the daemon is shutting down"};
    }
    current = std::make_shared<OpenPush>(loop_);
    current->step = step;
    current->basis = Version{params.getBasis()};
    current->samples = params.getSamples();
  }
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::badSlice, "push of step " + std::to_string(step.value) + ", shard " +
                                          std::to_string(params.getShard()) + ", element " +
                                          std::to_string(params.getOffset()) + ": " + why};
  };
  if (current->step != step) return bad("step " + std::to_string(current->step.value) + " has begun already");
  if (current->basis.value != params.getBasis()) return bad("its slices name different basis versions");
  if (!current->arrived.add(params.getOffset(), count)) return bad("the elements came twice");
  return current;
}

void TrainerSession::countRefusal(const Error& error) {
  DaemonCounters& counters = loop_.environment().counters;
  if (error.code == ErrorCode::nonFinite) counters.refusedNonFinite.add();
  if (error.code == ErrorCode::badSlice) counters.refusedSlices.add();
}

kj::Promise<void> TrainerSession::push(PushContext context) {
  seen();
  auto params = context.getParams();
  auto refuse = [this, context](const Error& error) mutable -> kj::Promise<void> {
    countRefusal(error);
    wire::writeError(error, context.getResults().initError());
    return kj::READY_NOW;
  };
  auto gradient = wire::floatsIn(params.getGradient());
  if (!gradient.ok()) return refuse(gradient.error());
  if (loop_.environment().closed) return refuse({ErrorCode::shuttingDown, "the daemon is shutting down"});
  if (auto status = checkPush(params, *gradient); !status.ok()) return refuse(status.error());
  auto opened = openPush(params, gradient->size());
  if (!opened.ok()) return refuse(opened.error());
  std::shared_ptr<OpenPush> push = *opened;
  Shard& shard = model_->store->shard(params.getShard());
  DaemonCounters& counters = loop_.environment().counters;
  counters.pushSlices.add();
  counters.pushBytes.add(gradient->size_bytes());
  counters_->bytesPushed.add(gradient->size_bytes());
  counters_->step.set(push->step.value);
  pushesInFlight_++;
  auto landed = kj::defer([this] { pushLanded(); });
  return model_->policy->push(shard, loop_.laneFor(model_, shard), *push, params.getOffset(), *gradient)
      .then([this, context, refuse, push](Result<PushAnswer> answer) mutable -> kj::Promise<void> {
        if (!answer.ok()) return refuse(answer.error());
        if (answer->applied) {
          push->finish();
          loop_.environment().counters.updates.add();
          counters_->staleness.set(answer->staleness);
        }
        auto accepted = context.getResults().initAccepted();
        accepted.setOutcome(answer->applied ? schema::PushOutcome::APPLIED : schema::PushOutcome::RECEIVED);
        accepted.setVersion(answer->version.value);
        accepted.setStaleness(answer->staleness);
        return kj::READY_NOW;
      })
      .attach(kj::mv(landed));
}

void TrainerSession::pushLanded() {
  if (--pushesInFlight_ != 0) return;
  KJ_IF_MAYBE (fulfiller, allLanded_) {
    (*fulfiller)->fulfill();
  }
  allLanded_ = nullptr;
}

kj::Promise<void> TrainerSession::leave(LeaveContext context) {
  left_ = true;
  kj::Promise<void> landed = kj::READY_NOW;
  if (pushesInFlight_ != 0) {
    auto pair = kj::newPromiseAndFulfiller<void>();
    allLanded_ = kj::mv(pair.fulfiller);
    landed = kj::mv(pair.promise);
  }
  return landed
      .then([this] {
        return loop_.onControl(
            [session = session_](Control& control) { control.depart(session, Departure::left); });
      })
      .then([context]() mutable { return acknowledge(context, Status()); });
}

kj::Promise<void> TrainerSession::notice(NoticeContext context) {
  context.allowCancellation();
  return loop_.onControl([](Control& control) { return control.whenNotified(); })
      .then([context](std::string reason) mutable {
        auto results = context.getResults();
        results.setShuttingDown(true);
        results.setReason(reason.c_str());
      });
}

}  // namespace psd
