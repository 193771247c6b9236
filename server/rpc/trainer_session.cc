#include "server/rpc/trainer_session.h"

#include <utility>

#include "common/wire/convert.h"
#include "server/model/slice_checks.h"
#include "server/policy/store_promise.h"
#include "server/rpc/shared_memory_service.h"

namespace psd {
namespace {

template <class Context>
kj::Promise<void> acknowledge(Context context, const Status& status) {
  wire::writeStatus(status, context.getResults().initStatus());
  return kj::READY_NOW;
}

/// What decodes a codec agreed as `spec`; null for float32. It lives as long as the program.
const Codec* decoderOf(const std::string& spec) {
  const std::string name = spec.substr(0, spec.find(':'));
  return name == "none" ? nullptr : findDecoder(name);
}

/// Of calls that may be parked for long each session has one of a kind.
Error parkedAlready(const std::string& call) {
  return {ErrorCode::invalidArgument, "another " + call + " of this session waits already"};
}

Error notAsked() { return {ErrorCode::invalidArgument, "this trainer was not asked for the initial values"}; }

}  // namespace

TrainerSession::TrainerSession(std::shared_ptr<Connection> connection, const Joined& joined)
    : CountedService(std::move(connection)),
      loop_(connection_->loop()),
      session_(joined.trainer.session),
      model_(joined.model),
      counters_(joined.counters),
      codec_(decoderOf(joined.codec)),
      epoch_(joined.epoch),
      attachment_(joined.attachment),
      further_(joined.further),
      pulls_(connection_, joined.model, joined.trainer, joined.counters, decoderOf(joined.pullCodec)),
      pushes_(joined.pushes),
      role_(joined.role),
      initialValues_(model_->store->shardCount()) {
  connection_->trainerCame(*this);
  counters_->connections.add();
}

TrainerSession::~TrainerSession() noexcept(false) {
  connection_->trainerWent(*this);
  reportEnd();
}

void TrainerSession::reportEnd() {
  if (std::exchange(reported_, true)) return;
  counters_->connections.subtract();
  if (further_ || left_ || !loop_.running()) return;
  loop_.detach(loop_.onControl([session = session_, attachment = attachment_](Control& control) {
    control.disconnected(session, attachment);
  }));
}

Status TrainerSession::renewLease() {
  const uint32_t current = epoch_->attachment;
  if (left_ || current == attachment_) {
    counters_->heard();
    return {};
  }
  if (current != SessionEpoch::kEnded) {
    return {ErrorCode::sessionEnded, "this trainer has joined again over another connection"};
  }
  return {ErrorCode::sessionEnded,
          "the daemon counts this trainer as gone: it was not heard of for membership.lease_ms (" +
              std::to_string(loop_.config().membership.leaseMs) + ")"};
}

kj::Promise<void> TrainerSession::keepAlive(KeepAliveContext context) {
  return acknowledge(context, renewLease());
}

template <class T, class Context>
kj::Promise<T> TrainerSession::park(Context context, bool& parked, kj::Promise<T> waiting) {
  context.allowCancellation();  // the session ends with the connection
  context.releaseParams();
  parked = true;
  return connection_->parked(waiting.attach(kj::defer([&parked] { parked = false; })));
}

Status TrainerSession::mayTrain() {
  PSD_RETURN_IF_ERROR(renewLease());
  if (left_) return {ErrorCode::notReady, "this trainer has left"};
  if (role_ != ModelStart::Role::go) return {ErrorCode::notReady, "the model has no values yet"};
  return {};
}

kj::Promise<void> TrainerSession::pull(PullContext context) {
  if (auto status = mayTrain(); !status.ok()) {
    wire::writeError(status.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  return pulls_.pull(context);
}

Status TrainerSession::mayInitialize(uint32_t shard, uint64_t offset, std::span<const float> values) {
  if (role_ != ModelStart::Role::bringValues) {
    return notAsked();
  }
  PSD_RETURN_IF_ERROR(checkSlice(*model_, loop_.config().limits, shard, offset, values.size()));
  PSD_RETURN_IF_ERROR(checkFinite(shard, offset, values));
  if (!initialValues_[shard].add(offset, values.size())) {
    return {ErrorCode::badSlice, "initial values for element " + std::to_string(offset) + " of shard " +
                                     std::to_string(shard) + " came twice"};
  }
  return {};
}

kj::Promise<void> TrainerSession::initialize(InitializeContext context) {
  if (auto status = renewLease(); !status.ok()) return acknowledge(context, status);
  auto params = context.getParams();
  auto values = wire::floatsIn(params.getValues());
  Status status =
      values.ok() ? mayInitialize(params.getShard(), params.getOffset(), *values) : values.status();
  if (!status.ok()) {
    countRefusal(loop_.environment().counters, status.error());
    return acknowledge(context, status);
  }
  Shard& shard = model_->store->shard(params.getShard());
  // What is written at once holds up nothing: the calls of this trainer take effect in their order.
  const bool later = !shard.storage().synchronous();
  if (later) writing_++;
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().write(loop_.laneFor(model_, shard), params.getOffset(),
                                                      *values, std::move(done));
                              })
      .then([this, context, later](Status written) mutable {
        if (later) initialValuesWritten(written);
        return acknowledge(context, written);
      });
}

void TrainerSession::initialValuesWritten(const Status& status) {
  if (!status.ok()) notWritten_ = status.error();
  if (--writing_ > 0) return;
  for (auto& waiting : waitForWriting_) waiting->fulfill();
  waitForWriting_.clear();
}

kj::Promise<void> TrainerSession::initialized(InitializedContext context) {
  if (auto status = renewLease(); !status.ok()) return acknowledge(context, status);
  if (role_ != ModelStart::Role::bringValues) return acknowledge(context, notAsked());
  if (writing_ > 0) {
    auto written = kj::newPromiseAndFulfiller<void>();
    waitForWriting_.push_back(kj::mv(written.fulfiller));
    return written.promise.then([this, context] { return initialized(context); });
  }
  if (notWritten_) return acknowledge(context, *notWritten_);
  for (size_t i = 0; i < initialValues_.size(); i++) {
    uint64_t elements = model_->store->shard(i).range().count;
    if (initialValues_[i].covered() == elements) continue;
    return acknowledge(context,
                       {ErrorCode::badSlice, "shard " + std::to_string(i) + " has initial values for " +
                                                 std::to_string(initialValues_[i].covered()) + " of its " +
                                                 std::to_string(elements) + " elements"});
  }
  context.releaseParams();
  return loop_.onControl([session = session_](Control& control) { return control.initialized(session); })
      .then([this, context](Status status) mutable {
        if (status.ok()) role_ = ModelStart::Role::go;
        return acknowledge(context, status);
      });
}

kj::Promise<void> TrainerSession::awaitModel(AwaitModelContext context) {
  Status may = renewLease();
  if (may.ok() && awaitsModel_) may = parkedAlready("awaitModel()");
  if (!may.ok()) {
    wire::writeError(may.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  counters_->waitForModel.add();
  auto role = loop_.onControl([session = session_](Control& control) { return control.awaitModel(session); });
  return park(context, awaitsModel_, kj::mv(role))
      .attach(kj::defer([counters = counters_] { counters->waitForModel.subtract(); }))
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

kj::Promise<void> TrainerSession::takeSamples(TakeSamplesContext context) {
  Status may = mayTrain();
  if (may.ok() && awaitsSamples_) may = parkedAlready("takeSamples()");
  if (!may.ok()) {
    wire::writeError(may.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  loop_.environment().dealsSamples = true;
  auto params = context.getParams();
  const SamplesRequest request{.step = Step{params.getStep()},
                               .count = params.getCount(),
                               .samples = params.getSamples(),
                               .epochs = params.getEpochs(),
                               .firstEpoch = params.getFirstEpoch(),
                               .wait = params.getWait(),
                               .nominal = params.getNominal(),
                               .sampleSeconds = params.getSampleSeconds()};
  counters_->waitForSamples.add();
  auto taken = loop_.onControl(
      [session = session_, request](Control& control) { return control.takeSamples(session, request); });
  return park(context, awaitsSamples_, kj::mv(taken))
      .attach(kj::defer([counters = counters_] { counters->waitForSamples.subtract(); }))
      .then([this, context, weighed = request.nominal != 0](Result<Samples> samples) mutable {
        auto results = context.getResults();
        if (!samples.ok()) {
          wire::writeError(samples.error(), results.initError());
        } else if (samples->range) {
          auto dealt = results.initDealt();
          dealt.setEpoch(samples->range->epoch);
          dealt.setBegin(samples->range->begin);
          dealt.setCount(static_cast<uint32_t>(samples->range->count));
          if (weighed) tellUnweighted(dealt);
        } else if (samples->finished) {
          results.setFinished();
        } else {
          results.setNothingNow();
        }
      });
}

void TrainerSession::tellUnweighted(schema::SamplesResult::Dealt::Builder dealt) const {
  const ParameterStore& store = *model_->store;
  auto out = dealt.initUnweighted(static_cast<kj::uint>(store.shardCount()));
  for (kj::uint i = 0; i < out.size(); i++) {
    // Rounds weigh the gradients that they combine, or count them alike on purpose.
    out.set(i, !loop_.config().groups[store.shard(i).range().group].policy.traits.rounds);
  }
}

kj::Promise<void> TrainerSession::leave(LeaveContext context) {
  if (auto status = renewLease(); !status.ok()) return acknowledge(context, status);
  left_ = true;
  context.releaseParams();
  // At once, though a push of its own may wait for others: it need not be there when they come.
  return loop_.onControl([session = session_](Control& control) { return control.leave(session); })
      .then([context]() mutable { return acknowledge(context, Status()); });
}

kj::Promise<void> TrainerSession::notice(NoticeContext context) {
  if (awaitsNotice_) {
    context.getResults().setReason(parkedAlready("notice()").message.c_str());
    return kj::READY_NOW;
  }
  auto told = loop_.onControl([](Control& control) { return control.end().whenNotified(); });
  return park(context, awaitsNotice_, kj::mv(told)).then([context](const EndNotice& notice) mutable {
    auto results = context.getResults();
    results.setShuttingDown(true);
    results.setReason(notice.reason.c_str());
    results.setComesBack(notice.comesBack);
  });
}

}  // namespace psd
