#include "server/rpc/trainer_session.h"

#include <utility>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"

namespace psd {
namespace {

constexpr size_t kReasonBytesMax = 300;

template <class Context>
void acknowledge(Context context, const Status& status) {
  wire::writeStatus(status, context.getResults().initStatus());
}

void writeGroup(const FormedGroup& group, schema::GroupResult::Formed::Builder formed) {
  formed.setGeneration(group.generation);
  formed.setIndex(group.index);
  formed.setReached(group.reached.value);
  auto members = formed.initMembers(static_cast<kj::uint>(group.members.size()));
  for (kj::uint i = 0; i < members.size(); i++) {
    members[i].setRank(group.members[i].rank.value);
    members[i].setHost(group.members[i].host.c_str());
    members[i].setPort(group.members[i].port);
  }
}

}  // namespace

TrainerSession::TrainerSession(std::shared_ptr<Connection> connection,
                               std::unique_ptr<TrainerService> service)
    : CountedService(std::move(connection)),
      service_(std::move(service)),
      pulls_(connection_, service_->pulls(), &service_->states()) {
  connection_->addTrainer(*this);
}

TrainerSession::~TrainerSession() noexcept(false) { connection_->removeTrainer(*this); }

template <class T, class Context>
kj::Promise<T> TrainerSession::park(Context context, kj::Promise<T> waiting) {
  context.allowCancellation();  // the session ends with the connection
  context.releaseParams();
  return connection_->parked(kj::mv(waiting));
}

kj::Promise<void> TrainerSession::keepAlive(KeepAliveContext context) {
  acknowledge(context, service_->renewLease());
  return kj::READY_NOW;
}

kj::Promise<void> TrainerSession::pull(PullContext context) {
  if (Status may = service_->mayTrain(); !may.ok()) {
    wire::writeError(may.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  return pulls_.pull(context);
}

kj::Promise<void> TrainerSession::pullRows(PullRowsContext context) {
  if (Status may = service_->mayTrain(); !may.ok()) {
    wire::writeError(may.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  return pulls_.pullRows(context);
}

kj::Promise<void> TrainerSession::pullState(PullStateContext context) {
  if (Status may = service_->mayTrain(); !may.ok()) {
    wire::writeError(may.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  return pulls_.pullState(context);
}

kj::Promise<void> TrainerSession::restoreState(RestoreStateContext context) {
  auto params = context.getParams();
  const auto values = wire::floatsIn(params.getValues());
  acknowledge(context, values.ok()
                           ? service_->restoreState(params.getShard(), wire::textIn(params.getState()),
                                                    params.getOffset(), *values)
                           : service_->refused(values.error()).answer.status());
  return kj::READY_NOW;
}

kj::Promise<void> TrainerSession::restored(RestoredContext context) {
  std::vector<uint64_t> steps;
  for (const uint64_t ofShard : context.getParams().getSteps()) steps.push_back(ofShard);
  context.releaseParams();
  return service_->restored(steps).then(
      [context](const Status& status) mutable { acknowledge(context, status); });
}

kj::Promise<void> TrainerSession::initialize(InitializeContext context) {
  auto params = context.getParams();
  return service_->initialize(params.getShard(), params.getOffset(), wire::bytesIn(params.getValues()))
      .then([context](const Status& status) mutable { acknowledge(context, status); });
}

kj::Promise<void> TrainerSession::initialized(InitializedContext context) {
  const Step step{context.getParams().getStep()};
  context.releaseParams();
  return service_->initialized(step).then(
      [context](const Status& status) mutable { acknowledge(context, status); });
}

kj::Promise<void> TrainerSession::awaitModel(AwaitModelContext context) {
  return park(context, service_->awaitModel())
      .then([context](Result<ModelInitialization::Role> role) mutable {
        auto results = context.getResults();
        if (!role.ok()) {
          wire::writeError(role.error(), results.initError());
        } else if (*role == ModelInitialization::Role::go) {
          results.setReady();
        } else {
          results.setMustInitialize();
        }
      });
}

kj::Promise<void> TrainerSession::takeSamples(TakeSamplesContext context) {
  auto params = context.getParams();
  const SamplesRequest request{.step = Step{params.getStep()},
                               .count = params.getCount(),
                               .samples = params.getSamples(),
                               .epochs = params.getEpochs(),
                               .firstEpoch = params.getFirstEpoch(),
                               .wait = params.getWait(),
                               .nominal = params.getNominal(),
                               .sampleSeconds = params.getSampleSeconds()};
  return park(context, service_->takeSamples(request))
      .then([context](const Result<SamplesForStep>& samples) mutable {
        auto results = context.getResults();
        if (!samples.ok()) {
          wire::writeError(samples.error(), results.initError());
        } else if (samples->range) {
          auto assigned = results.initAssigned();
          assigned.setEpoch(samples->range->epoch);
          assigned.setBegin(samples->range->begin);
          assigned.setCount(static_cast<uint32_t>(samples->range->count));
          assigned.setMixed(samples->mixed);
          if (samples->scaledByTrainer.empty()) return;
          auto out = assigned.initScaledByTrainer(static_cast<kj::uint>(samples->scaledByTrainer.size()));
          for (kj::uint i = 0; i < out.size(); i++) out.set(i, samples->scaledByTrainer[i]);
        } else if (samples->finished) {
          results.setFinished();
        } else {
          results.setNothingNow();
        }
      });
}

kj::Promise<void> TrainerSession::report(ReportContext context) {
  auto params = context.getParams();
  const uint64_t step = params.getStep();
  std::vector<NamedValue> values;
  for (auto each : params.getValues()) {
    if (values.size() > kReportedValuesMax) break;  // too many; the service reports the error
    const std::string_view name = wire::textIn(each.getName());
    values.push_back({std::string(name.substr(0, kReportedNameBytesMax + 1)), each.getValue()});
  }
  context.releaseParams();
  return service_->report(step, std::move(values)).then([context](const Status& status) mutable {
    acknowledge(context, status);
  });
}

kj::Promise<void> TrainerSession::setBuffers(SetBuffersContext context) {
  auto params = context.getParams();
  auto taken = service_->setBuffers(params.getSize(), params.getOffset(), wire::bytesIn(params.getBytes()));
  context.releaseParams();
  return taken.then([context](const Status& status) mutable { acknowledge(context, status); });
}

kj::Promise<void> TrainerSession::buffers(BuffersContext context) {
  if (Status may = service_->mayTrain(); !may.ok()) {
    wire::writeError(may.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  return pulls_.buffers(context);
}

kj::Promise<void> TrainerSession::roundDue(RoundDueContext context) {
  const Version version{context.getParams().getVersion()};
  const uint32_t shard = context.getParams().getShard();
  return park(context, service_->roundDue(version, shard))
      .then([context](const Result<RoundDue>& due) mutable {
        auto results = context.getResults();
        if (!due.ok()) return wire::writeError(due.error(), results.initError());
        switch (*due) {
          case RoundDue::closing: return results.setClosing();
          case RoundDue::closed: return results.setClosed();
          case RoundDue::stepsDone: return results.setStepsDone();
          case RoundDue::groupWanted: return results.setGroupWanted();
        }
      });
}

kj::Promise<void> TrainerSession::progress(ProgressContext context) {
  const bool settled = context.getParams().getSettled();
  context.releaseParams();
  context.allowCancellation();
  auto refuse = [context](const Error& error) mutable {
    wire::writeError(error, context.getResults().initError());
  };
  auto make = [this, context, settled]() mutable { return writeProgress(context, settled); };
  return connection_->answerWithin(service_->progressBytes(), std::move(make), std::move(refuse));
}

kj::Promise<void> TrainerSession::writeProgress(ProgressContext context, bool settled) {
  return service_->progress(settled).then([context](const Result<ProgressHere>& here) mutable {
    auto results = context.getResults();
    if (!here.ok()) return wire::writeError(here.error(), results.initError());
    auto out = results.initProgress();
    const auto write = [](const std::vector<Version>& versions, capnp::List<uint64_t>::Builder list) {
      for (kj::uint i = 0; i < list.size(); i++) list.set(i, versions[i].value);
    };
    write(here->versions, out.initVersions(static_cast<kj::uint>(here->versions.size())));
    write(here->began, out.initBegan(static_cast<kj::uint>(here->began.size())));
    out.setTrainers(here->run.trainers);
    out.setOver(here->run.over);
  });
}

kj::Promise<void> TrainerSession::formAveragingGroup(FormAveragingGroupContext context) {
  auto params = context.getParams();
  const uint32_t port = params.getPort();
  // An invalid port becomes 0, which the service rejects; of an overlong host enough is kept to be rejected.
  const std::string_view host = wire::textIn(params.getHost());
  const AveragingMember where{
      {},
      printable(host.substr(0, kAveragingHostBytesMax + 1), kAveragingHostBytesMax + 1),
      port <= UINT16_MAX ? static_cast<uint16_t>(port) : uint16_t{0}};
  return park(context, service_->formAveragingGroup(params.getAfter(), where))
      .then([this, context](Result<FormedGroup> group) mutable -> kj::Promise<void> {
        auto refuse = [context](const Error& error) mutable {
          wire::writeError(error, context.getResults().initError());
        };
        if (!group.ok()) {
          refuse(group.error());
          return kj::READY_NOW;
        }
        uint64_t bytes = 128;
        for (const AveragingMember& member : group->members) bytes += 32 + member.host.size();
        auto make = [context, group = *std::move(group)]() mutable {
          writeGroup(group, context.getResults().initFormed());
        };
        return connection_->answerWithin(bytes, std::move(make), std::move(refuse));
      });
}

kj::Promise<void> TrainerSession::leave(LeaveContext context) {
  context.releaseParams();
  return service_->leave().then([context](const Status& status) mutable { acknowledge(context, status); });
}

kj::Promise<void> TrainerSession::notice(NoticeContext context) {
  const uint64_t move = context.getParams().getMove();
  auto told = park(context, service_->notice(move)).then([context](const Result<Notice>& notice) mutable {
    auto results = context.getResults();
    if (!notice.ok()) return results.setReason(notice.message().c_str());
    if (!notice->end) {
      results.setMove(notice->move.move);
      return results.setMoveDaemons(notice->move.daemons);
    }
    results.setShuttingDown(true);
    results.setReason(notice->end->reason.c_str());
    results.setRestarting(notice->end->restarting);
  });
  auto revoked = connection_->caller().whenRevoked().then([this, context]() mutable {
    wire::writeError(*connection_->caller().revoked(), context.getResults().initRevoked());
  });
  return told.exclusiveJoin(kj::mv(revoked));
}

kj::Promise<void> TrainerSession::quiesce(QuiesceContext context) {
  const uint64_t move = context.getParams().getMove();
  std::string cannot(wire::textIn(context.getParams().getCannot()).substr(0, kReasonBytesMax));
  return park(context, service_->quiesce(move, std::move(cannot)))
      .then([context](const MoveQuiescence::Answer& answer) mutable {
        auto results = context.getResults();
        if (!answer.ok()) {
          wire::writeError(answer.error(), results.initError());
        } else if (answer->empty()) {
          results.setContinueHere();
        } else {
          wire::writeDaemonAddresses(*answer, results.initMoved(static_cast<kj::uint>(answer->size())));
        }
      });
}

}  // namespace psd
