#include "server/service/trainer_service.h"

#include <algorithm>
#include <utility>

#include <kj/vector.h>
#include <spdlog/fmt/fmt.h>

#include "common/codec/topk.h"
#include "common/text/text.h"
#include "server/model/slice_checks.h"
#include "server/policy/policy_capabilities.h"

namespace psd {
namespace {

/// The decoder of the codec agreed as `spec`; null for float32. Static lifetime.
const Codec* decoderOf(const std::string& spec) {
  const std::string name = spec.substr(0, spec.find(':'));
  return name == "none" ? nullptr : findDecoder(name);
}

/// Long waits are limited to one call of each kind per session.
Error alreadyWaiting(const std::string& call) {
  return {ErrorCode::invalidArgument, "another " + call + " of this session is already waiting"};
}

Error notInitializer() { return {ErrorCode::invalidArgument, "this trainer is not the initializer"}; }

}  // namespace

TrainerService::TrainerService(EventLoop& loop, ControlLoop& control, const SessionGrant& grant,
                               const ParameterHost::Place& place)
    : loop_(loop),
      control_(control),
      session_(grant.trainer.session),
      bridges_(grant.trainer.bridges),
      counters_(grant.counters),
      attachment_{grant.fence, grant.attachment},
      further_(grant.further),
      place_(place),
      codec_(decoderOf(grant.codec)),
      pulls_(loop, place_.model, grant.trainer, counters_, decoderOf(grant.pullCodec)),
      rings_(loop, place_.model),
      initialValues_(loop, place_.model),
      buffers_(loop, place_.model, grant.trainer),
      states_(loop, place_.model),
      incoming_(loop, place_.model),
      role_(grant.role) {
  counters_->connections.add();
}

TrainerService::~TrainerService() noexcept(false) { disconnected(); }

void TrainerService::disconnected() {
  if (std::exchange(reported_, true)) return;
  counters_->connections.subtract();
  if (further_ || left_ || !loop_.running()) return;
  loop_.detach(control_.run(
      [session = session_, attachment = attachment_.number](Coordinator& coordinator, ParameterHost&) {
        coordinator.disconnected(session, attachment);
      }));
}

void TrainerService::extendLease() {
  if (attachment_.isCurrent()) counters_->touch();
}

Status TrainerService::renewLease() {
  Status holds = left_ ? Status() : attachment_.check();
  if (holds.ok()) counters_->touch();
  return holds;
}

Status TrainerService::mayTrain() {
  PSD_RETURN_IF_ERROR(renewLease());
  if (left_) return {ErrorCode::notReady, "this trainer has left"};
  if (role_ != ModelInitialization::Role::go) return {ErrorCode::notReady, "the model has no values yet"};
  return {};
}

template <class T>
kj::Promise<T> TrainerService::park(bool& parked, kj::Promise<T> waiting) {
  parked = true;
  return waiting.attach(kj::defer([&parked] { parked = false; }));
}

// --- Initial values ----------------------------------------------------------------------------------

kj::Promise<Status> TrainerService::initialize(uint32_t shard, uint64_t offset,
                                               std::span<const std::byte> bytes) {
  if (Status may = renewLease(); !may.ok()) return may;
  const Result<Gradient> values = valuesOf(shard, bytes);
  if (!values.ok()) return refused(values.error()).answer.status();
  if (role_ == ModelInitialization::Role::initialize) return initialValues_.write(shard, offset, *values);
  countRefusal(loop_.environment().counters, notInitializer());
  return Status(notInitializer());
}

kj::Promise<Status> TrainerService::initialized(Step step) {
  if (Status may = renewLease(); !may.ok()) return may;
  if (role_ != ModelInitialization::Role::initialize) return Status(notInitializer());
  KJ_IF_MAYBE (written, initialValues_.whenWritten()) {
    return written->then([this, step] { return initialized(step); });
  }
  if (Status complete = initialValues_.complete(); !complete.ok()) return complete;
  // Called without yielding to the loop first: pipelined calls of a trainer must take effect in order.
  return control_
      .run([session = session_, step](Coordinator& coordinator, ParameterHost&) {
        return coordinator.initialized(session, step);
      })
      .then([this](Status kept) {
        if (kept.ok()) role_ = ModelInitialization::Role::go;
        return kept;
      });
}

kj::Promise<Result<ModelInitialization::Role>> TrainerService::awaitModel() {
  using Answer = Result<ModelInitialization::Role>;
  if (Status may = renewLease(); !may.ok()) return Answer(may.error());
  if (awaitsModel_) return Answer(alreadyWaiting("awaitModel()"));
  counters_->waitForModel.add();
  auto role = control_.run([session = session_](Coordinator& coordinator, ParameterHost&) {
    return coordinator.awaitModel(session);
  });
  return park(awaitsModel_, kj::mv(role))
      .attach(kj::defer([counters = counters_] { counters->waitForModel.subtract(); }))
      .then([this](Answer role) {
        if (role.ok()) role_ = *role;
        return role;
      });
}

// --- The optimizer's state ----------------------------------------------------------------------------

Status TrainerService::restoreState(uint32_t shard, std::string_view state, uint64_t offset,
                                    std::span<const float> values) {
  PSD_RETURN_IF_ERROR(mayTrain());
  if (bridges_) return {ErrorCode::invalidArgument, "a bridge restores no state"};
  return incoming_.write(shard, state, offset, values);
}

kj::Promise<Status> TrainerService::restored(const std::vector<uint64_t>& steps) {
  if (Status may = mayTrain(); !may.ok()) return may;
  auto state = incoming_.take(steps);
  if (!state.ok()) return state.status();
  const Step newest{std::ranges::max(steps)};
  auto shared = std::make_shared<const ModelState>(*std::move(state));
  return control_.run([session = session_, newest, shared = std::move(shared)](Coordinator& coordinator,
                                                                               ParameterHost& host) {
    return host.restore(shared, coordinator.departed())
        .then([&coordinator, session, newest](Status restored) {
          if (restored.ok()) coordinator.restored(session, newest);
          return restored;
        });
  });
}

// --- Pushes ------------------------------------------------------------------------------------------

Result<Gradient> TrainerService::valuesOf(uint32_t shard, std::span<const std::byte> bytes) const {
  const ParameterStore& store = *place_.model->store;
  const DType dtype = shard < store.shardCount() ? store.shard(shard).range().dtype : DType::f32;
  if (bytes.size() % dtypeBytes(dtype) != 0) {
    return Error{ErrorCode::badSlice, fmt::format("a slice of {} bytes does not consist of {} values",
                                                  bytes.size(), dtypeName(dtype))};
  }
  const uint64_t count = bytes.size() / dtypeBytes(dtype);
  if (const Codec* const codec = codecOf(dtype)) return Gradient(*codec, bytes, count);
  return Gradient(std::span(reinterpret_cast<const float*>(bytes.data()), count));
}

Result<Gradient> TrainerService::gradientOf(std::string_view codec, std::span<const std::byte> bytes,
                                            uint64_t count) const {
  if (codec == TopK::kName) return Gradient(*findDecoder(codec), bytes, count);
  if (codec_ == nullptr || codec != codec_->name()) return codecNotAgreed(printable(codec), codec_);
  return Gradient(*codec_, bytes, count);
}

uint64_t TrainerService::valueCount(const RowIds& rows) const {
  uint64_t count = 0;
  const auto& tables = place_.model->store->model().tables;
  for (const RowRun& run : rows.runs) {
    if (run.table < tables.size()) count += uint64_t{run.count} * tables[run.table].dim;
  }
  return count;
}

Result<Gradient> TrainerService::gradientOfRows(std::string_view codec, std::span<const std::byte> bytes,
                                                const RowIds& rows) const {
  const uint64_t count = valueCount(rows);
  PSD_ASSIGN_OR_RETURN(const Gradient gradient, gradientOf(codec, bytes, count));
  if (count == 0) return Error{ErrorCode::badSlice, "a slice without rows must not name a codec"};
  if (gradient.codec()->suitsParameters()) return gradient;
  return Error{ErrorCode::badSlice, fmt::format("codec {} is not for rows; push them as float32", codec)};
}

Result<Gradient> TrainerService::gradientInRing(uint64_t at, uint64_t count) const {
  PSD_ASSIGN_OR_RETURN(const SharedRing* ring, rings_.host());
  PSD_ASSIGN_OR_RETURN(const auto values, ring->floatsAt(at, count));
  return Gradient::inSharedMemory(values);
}

Result<Gradient> TrainerService::rowGradientInRing(uint64_t at, const RowIds& rows) const {
  return gradientInRing(at, valueCount(rows));
}

Result<TrainerService::DeviceRingGradient> TrainerService::gradientInDeviceRing(uint32_t shard, uint64_t at,
                                                                                uint64_t count) const {
  PSD_ASSIGN_OR_RETURN(auto ring, rings_.onDeviceOf(shard));
  PSD_ASSIGN_OR_RETURN(const auto values, ring->floatsAt(at, count));
  PSD_ASSIGN_OR_RETURN(auto lease, ring->leaseCopy(values.size_bytes()));
  using RingWithCopy = std::pair<std::shared_ptr<DeviceRing>, ByteBudget::Lease>;
  return DeviceRingGradient{Gradient::onDevice(values),
                            std::make_shared<const RingWithCopy>(std::move(ring), std::move(lease))};
}

PushReply TrainerService::refused(const Error& error) const {
  countRefusal(loop_.environment().counters, error);
  return {error};
}

kj::Promise<PushReply> TrainerService::push(PushSlice slice) {
  if (Status may = mayTrain(); !may.ok()) return PushReply{may.error()};
  slice.attachment = attachment_;
  return place_.pushes->push(std::move(slice), loop_.config().limits);
}

kj::Promise<Result<RoundDue>> TrainerService::roundDue(Version version, uint32_t shard) {
  if (Status may = mayTrain(); !may.ok()) return Result<RoundDue>(may.error());
  const ParameterStore& store = *place_.model->store;
  if (shard >= store.blockCount()) {
    return Result<RoundDue>(ErrorCode::badSlice,
                            fmt::format("there is no shard {}, the model has {}", shard, store.blockCount()));
  }
  auto policy = place_.model->policyOf(place_.model->store->block(shard));
  RoundNotices* const notices = policy->roundNotices();
  if (!notices) {
    return Result<RoundDue>(ErrorCode::invalidArgument,
                            fmt::format("policy {} has no rounds with a grace period", policy->name()));
  }
  auto due = notices->roundDue(session_, version);
  return due.attach(std::move(policy));
}

kj::Promise<Result<FormedGroup>> TrainerService::formAveragingGroup(uint64_t after,
                                                                    const AveragingMember& where) {
  if (Status may = mayTrain(); !may.ok()) return Result<FormedGroup>(may.error());
  if (where.host.empty() || where.host.size() > kAveragingHostBytesMax || where.port == 0) {
    return Result<FormedGroup>(
        ErrorCode::invalidArgument,
        fmt::format("formAveragingGroup(): needs a host of 1 to {} bytes and a port 1 to 65535 "
                    "at which others reach the trainer",
                    kAveragingHostBytesMax));
  }
  auto policy = place_.model->policyOf(place_.model->store->block(0));
  AveragingPolicy* const averaging = policy->averaging();
  if (!averaging) {
    return Result<FormedGroup>(
        ErrorCode::invalidArgument,
        fmt::format("under policy {} trainers do not form averaging groups", policy->name()));
  }
  auto formed = averaging->formAveragingGroup(session_, after, where);
  return formed.attach(std::move(policy)).then([this](Result<FormedGroup> group) {
    if (group.ok() && group->index == 0) reportAveragingGroup(*group);
    return group;
  });
}

void TrainerService::reportAveragingGroup(const FormedGroup& group) {
  const std::string ranks = joined(
      group.members, ", ", [](const AveragingMember& member) { return std::to_string(member.rank.value); });
  const std::string line = fmt::format("allreduce: generation {} of rank{} {}", group.generation,
                                       group.members.size() == 1 ? "" : "s", ranks);
  loop_.detach(control_.run(
      [line](Coordinator& coordinator, ParameterHost&) { coordinator.events().add("group", line); }));
}

kj::Promise<void> TrainerService::whenSettled(size_t index) {
  ParameterBlock& block = place_.model->store->block(index);
  return block.lock().acquire().then(
      [&block](ShardLock::Guard) { return block.whenDurable(block.logged()); });
}

kj::Promise<Result<ProgressHere>> TrainerService::progress(bool settled) {
  using Answer = Result<ProgressHere>;
  if (Status may = mayTrain(); !may.ok()) return Answer(may.error());
  if (!bridges_) return Answer(ErrorCode::invalidArgument, "progress() is for a bridge");
  ParameterStore& store = *place_.model->store;
  kj::Vector<kj::Promise<void>> settling;
  for (size_t i = 0; i < store.blockCount(); i++) {
    if (settled && store.block(i).logs()) settling.add(whenSettled(i));
  }
  return kj::joinPromises(settling.releaseAsArray())
      .then([this] {
        return control_.run([](Coordinator& coordinator, ParameterHost&) { return coordinator.progress(); });
      })
      .then([model = place_.model](RunProgress run) -> Answer {
        // Read the versions after the run's state, so that the last updates of departed trainers are
        // included.
        ProgressHere here{{}, model->began(), run};
        for (size_t i = 0; i < model->store->blockCount(); i++) {
          here.versions.push_back(model->store->block(i).version());
        }
        return here;
      });
}

// --- Samples and the end -----------------------------------------------------------------------------

kj::Promise<Result<SamplesForStep>> TrainerService::takeSamples(const SamplesRequest& request) {
  using Answer = Result<SamplesForStep>;
  if (Status may = mayTrain(); !may.ok()) return Answer(may.error());
  if (awaitsSamples_) return Answer(alreadyWaiting("takeSamples()"));
  control_.samplesAreAssigned();
  counters_->waitForSamples.add();
  auto taken = control_.run([session = session_, request](Coordinator& coordinator, ParameterHost&) {
    return coordinator.samples().take(session, request);
  });
  return park(awaitsSamples_, kj::mv(taken))
      .attach(kj::defer([counters = counters_] { counters->waitForSamples.subtract(); }))
      .then([this, weighed = request.nominal != 0](const Result<Samples>& samples) -> Answer {
        if (!samples.ok()) return samples.error();
        if (!samples->range || !weighed) return SamplesForStep{*samples, {}};
        return SamplesForStep{*samples, scaledByTrainer(), mixesGroups()};
      });
}

std::vector<bool> TrainerService::scaledByTrainer() const {
  const ParameterStore& store = *place_.model->store;
  std::vector<bool> out;
  for (size_t i = 0; i < store.blockCount(); i++) {
    // Policies with rounds weigh the gradients that they combine, or deliberately count them alike.
    out.push_back(!loop_.config().groups[store.block(i).group()].policy.traits.rounds);
  }
  return out;
}

bool TrainerService::mixesGroups() const {
  const auto& groups = loop_.config().groups;
  const bool rounds = groups.front().policy.traits.rounds;
  return std::ranges::any_of(groups,
                             [&](const GroupConfig& group) { return group.policy.traits.rounds != rounds; });
}

kj::Promise<Status> TrainerService::setBuffers(uint64_t size, uint64_t offset,
                                               std::span<const std::byte> bytes) {
  if (Status may = mayTrain(); !may.ok()) return may;
  if (further_) {
    return Status(ErrorCode::invalidArgument, "setBuffers() belongs to the connection that joined");
  }
  return buffers_.take(size, offset, bytes);
}

kj::Promise<Status> TrainerService::report(uint64_t step, std::vector<NamedValue> values) {
  if (Status may = renewLease(); !may.ok()) return may;
  if (Status right = validateReport(values); !right.ok()) return right;
  if (reports_) {
    loop_.environment().counters.refusedOverload.add();
    return Status(ErrorCode::overloaded, "the previous report is not answered yet");
  }
  auto taken = control_.run(
      [session = session_, step, values = std::move(values)](Coordinator& coordinator, ParameterHost&) {
        return coordinator.report(session, step, values);
      });
  return park(reports_, kj::mv(taken));
}

kj::Promise<Status> TrainerService::leave() {
  if (Status may = renewLease(); !may.ok()) return may;
  left_ = true;
  // Immediately, even if one of its own pushes waits for others: the push does not need the trainer any more.
  return control_
      .run([session = session_](Coordinator& coordinator, ParameterHost&) {
        return coordinator.leave(session);
      })
      .then([] { return Status(); });
}

kj::Promise<Result<Notice>> TrainerService::notice(uint64_t move) {
  using Answer = Result<Notice>;
  if (awaitsNotice_) return Answer(alreadyWaiting("notice()"));
  auto told = control_.run([move](Coordinator& coordinator, ParameterHost&) -> kj::Promise<Notice> {
    auto ends = coordinator.end().whenNotified().then([](EndNotice end) {
      return Notice{std::move(end), {}};
    });
    auto moves = coordinator.pause().whenAnnounced(move).then([](MoveNotice asked) {
      return Notice{{}, asked};
    });
    return ends.exclusiveJoin(kj::mv(moves));
  });
  return park(awaitsNotice_, kj::mv(told)).then([](Notice notice) { return Answer(std::move(notice)); });
}

kj::Promise<MoveQuiescence::Answer> TrainerService::quiesce(uint64_t move, std::string cannot) {
  if (Status may = renewLease(); !may.ok()) return MoveQuiescence::Answer(may.error());
  return control_.run(
      [session = session_, move, cannot = std::move(cannot)](Coordinator& coordinator, ParameterHost&) {
        return coordinator.quiesce(session, move, cannot);
      });
}

}  // namespace psd
