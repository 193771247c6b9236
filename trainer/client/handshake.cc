#include "trainer/client/handshake.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

#include "common/os/host.h"
#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

/// Empty if this program does not know the type.
std::optional<InnerOptimizer> readInner(schema::InnerOptimizer::Reader in) {
  using Type = schema::InnerOptimizer::Type;
  InnerOptimizer inner;
  switch (in.getType()) {
    case Type::SGD: inner.type = InnerOptimizer::Type::sgd; break;
    case Type::ADAM: inner.type = InnerOptimizer::Type::adam; break;
    case Type::ADAMW: inner.type = InnerOptimizer::Type::adamw; break;
    default: return {};
  }
  inner.rate = in.getRate();
  inner.weightDecay = in.getWeightDecay();
  inner.momentum = in.getMomentum();
  inner.nesterov = in.getNesterov();
  inner.betas = {in.getBeta1(), in.getBeta2()};
  inner.eps = in.getEps();
  inner.warmupSteps = in.getWarmupSteps();
  inner.totalSteps = in.getTotalSteps();
  inner.rateMin = in.getRateMin();
  return inner;
}

Status readLocalSteps(schema::ModelAccess::Reader access, LocalSteps& steps) {
  if (!access.hasLocalSteps()) return {};
  const auto local = access.getLocalSteps();
  steps = {.period = local.getPeriod(),
           .rate = local.getRate(),
           .alpha = local.getAlpha(),
           .endsEarly = local.getEndsEarly(),
           .fragments = std::max(local.getFragments(), 1u),
           .fragmentPerGroup = local.getFragmentPerGroup(),
           .delay = local.getDelay(),
           .blend = local.getBlend(),
           .deltas = std::string(wire::textIn(local.getDeltas())),
           .updatesPerRound = std::max(local.getUpdatesPerRound(), 1u)};
  if (!steps.deltas.empty() && !findDecoder(steps.deltas)) {
    return {ErrorCode::protocolMismatch, fmt::format("the daemon's deltas use a codec that this program does "
                                                     "not have: {}",
                                                     printable(steps.deltas, 100))};
  }
  if (local.hasInner()) {
    steps.inner = readInner(local.getInner());
    if (!steps.inner || !steps.inner->isValid()) {
      return {ErrorCode::protocolMismatch, "the daemon's inner optimizer is invalid"};
    }
  }
  const bool streams = steps.period != 0 && steps.fragments <= steps.period &&
                       steps.delay < steps.period / steps.fragments && steps.blend >= 0 && steps.blend < 1;
  if (streams && std::isfinite(steps.rate) && std::isfinite(steps.alpha)) return {};
  return {ErrorCode::protocolMismatch, "the daemon's local steps are invalid"};
}

/// Reads the fragment of each shard of the plan. Each fragment has at least one shard; for a partition, other
/// daemons may hold it.
Status readFragments(schema::ModelAccess::Reader access, const ModelSpec& model, SessionTerms& terms) {
  const uint32_t count = terms.localSteps.fragments;
  const auto fragments = access.getFragmentOfShard();
  std::set<uint32_t> seen;
  for (const uint32_t fragment : fragments) seen.insert(fragment);
  const size_t least = count == 1 ? 0 : model.partition.isWhole() ? count : 1;
  if (fragments.size() != (count > 1 ? terms.plan.shards.size() : 0) || seen.size() < least ||
      (!seen.empty() && *seen.rbegin() >= count)) {
    return {ErrorCode::protocolMismatch, "the daemon's fragments do not match its shards"};
  }
  for (kj::uint i = 0; i < fragments.size(); i++) terms.plan.shards[i].group = fragments[i];
  return {};
}

Status readAllReduce(schema::ModelAccess::Reader access, AllReduceTerms& terms) {
  if (!access.hasAllReduce()) return {};
  constexpr uint64_t kDayMs = 86'400'000;
  const auto allReduce = access.getAllReduce();
  const uint64_t timeout = allReduce.getTimeoutMs();
  terms = {std::chrono::milliseconds(std::min(timeout, kDayMs)), allReduce.getBucketBytes()};
  if (timeout > 0 && timeout <= kDayMs && terms.bucketBytes >= sizeof(float)) return {};
  return {ErrorCode::protocolMismatch, "the daemon's terms of allreduce are invalid"};
}

/// Fails unless every id of every table belongs to one of the row shards, in their order.
Status checkRowShards(const ModelSpec& model, const std::vector<RowShardTerms>& shards) {
  const Error bad{ErrorCode::protocolMismatch, "the daemon's row shards do not cover the model's tables"};
  std::vector<uint64_t> next(model.tables.size());  // first hash not covered yet, by table
  std::vector<bool> whole(model.tables.size());
  for (const RowShardTerms& shard : shards) {
    if (shard.hashLast < shard.hashFirst || !std::ranges::is_sorted(shard.tables)) return bad;
    for (const uint32_t table : shard.tables) {
      if (table >= next.size() || whole[table] || shard.hashFirst != next[table]) return bad;
      next[table] = shard.hashLast + 1;
      whole[table] = next[table] == 0;
    }
  }
  return std::ranges::all_of(whole, std::identity()) ? Status() : Status(bad);
}

Status readRowShards(schema::ModelAccess::Reader access, const ModelSpec& model, SessionTerms& terms) {
  for (const auto shard : access.getRowShards()) {
    RowShardTerms& of = terms.rowShards.emplace_back();
    of.id = ShardId{static_cast<uint32_t>(terms.blockCount() - 1)};
    of.hashFirst = shard.getHashFirst();
    of.hashLast = shard.getHashLast();
    for (const uint32_t table : shard.getTables()) of.tables.push_back(table);
  }
  return checkRowShards(model, terms.rowShards);
}

Status readAccess(schema::ModelAccess::Reader access, uint64_t chunkBytes, const ModelSpec& model,
                  SessionTerms& terms) {
  PSD_ASSIGN_OR_RETURN(terms.plan, wire::readPlan(access.getShards()));
  const uint64_t expected = ModelLayout(model).totalElements();
  if (terms.plan.totalElements() != expected) {
    return {ErrorCode::protocolMismatch,
            fmt::format("the daemon's shards hold {} elements; this model's layout has {}",
                        terms.plan.totalElements(), expected)};
  }
  terms.sliceElementsMax = access.getSliceElementsMax();
  terms.outgoingBytes = access.getOutgoingBytes();
  terms.rowValuesMax = std::min(chunkBytes / sizeof(float), terms.sliceElementsMax);
  PSD_RETURN_IF_ERROR(terms.plan.readDtypes(model));
  terms.slices = cutIntoSlices(terms.plan, terms.rowValuesMax);
  PSD_RETURN_IF_ERROR(readRowShards(access, model, terms));
  terms.policy = printable(wire::textIn(access.getPolicy()));
  terms.device = printable(wire::textIn(access.getDevice()));
  terms.optimizer = wire::textIn(access.getOptimizer());
  terms.takesHyperparameters = access.getTakesHyperparameters();
  terms.restoresState = access.getRestoresState();
  terms.takesSparse = access.getTakesSparse();
  terms.rules.text = wire::textIn(access.getRules());
  for (const uint32_t group : access.getEmptyGroups()) terms.rules.emptyGroups.push_back(group);
  PSD_RETURN_IF_ERROR(readAllReduce(access, terms.allReduce));
  PSD_RETURN_IF_ERROR(readLocalSteps(access, terms.localSteps));
  return readFragments(access, model, terms);
}

TransportOffer readOffer(schema::ModelAccess::Reader access) {
  TransportOffer offer;
  if (access.hasSharedModel()) {
    auto shared = access.getSharedModel();
    offer.model = shared.getMemory();
    offer.places = {shared.getValuesAt(), shared.getVersionsAt(), shared.getVersionStep(),
                    shared.getReadableAt()};
    offer.appliesSlices = shared.getAppliesSlices();
  }
  offer.notShared = printable(wire::textIn(access.getNotShared()));
  offer.ringBytesMax = access.getRingBytesMax();
  for (const uint32_t device : access.getDeviceOfShard()) offer.deviceOfShard.push_back(device);
  return offer;
}

/// Null for the codec that leaves values as they are.
Result<std::shared_ptr<const Codec>> agreedCodec(const std::string& server, std::string_view spec) {
  auto made = makeCodec(spec.empty() ? "none" : spec);
  if (!made.ok()) {
    return Error{ErrorCode::protocolMismatch,
                 fmt::format("{} requires a codec that this program does not have: {}", server,
                             printable(made.message(), 300))};
  }
  return (*made)->name() == "none" ? nullptr : *made;
}

Result<Admission> readJoined(DaemonConnection& connection, schema::JoinResult::Joined::Reader joined,
                             const ModelSpec& model, uint64_t chunkBytes, uint64_t incarnation) {
  Admission in;
  SessionTerms& terms = in.terms;
  PSD_RETURN_IF_ERROR(readAccess(joined.getAccess(), chunkBytes, model, terms));
  PSD_ASSIGN_OR_RETURN(terms.codec, agreedCodec(connection.server(), wire::textIn(joined.getCodec())));
  PSD_ASSIGN_OR_RETURN(terms.pullCodec,
                       agreedCodec(connection.server(), wire::textIn(joined.getPullCodec())));
  terms.rank = Rank{joined.getRank()};
  terms.incarnation = incarnation;
  terms.attachment = joined.getAttachment();
  terms.leaseMs = joined.getLeaseMs();
  terms.daemon = joined.getDaemon();
  terms.term = joined.getTerm();
  in.answer = {terms.rank,          joined.getWorldSize(), joined.getMustInitialize(),
               joined.getResumed(), joined.getDaemon(),    joined.getResumedState(),
               joined.getTerm()};
  in.offer = readOffer(joined.getAccess());
  connection.setTrainer(joined.getSession());
  return in;
}

Result<DaemonIdentity> readIdentity(const std::string& server, schema::LoginResult::Reader answer) {
  DaemonIdentity identity{
      printable(wire::textIn(answer.getServerVersion())), {}, answer.getDaemon(), {}, answer.getMove()};
  PSD_ASSIGN_OR_RETURN(identity.daemons, wire::readDaemons(server, answer));
  PSD_ASSIGN_OR_RETURN(identity.movedTo, wire::readDaemonAddresses(server, answer.getMovedTo()));
  return identity;
}

/// Why the daemon grants no capability to publish; an older daemon has none to grant.
Error mayNotPublish(const std::string& server, schema::LoginResult::Reader answer) {
  if (wire::textIn(answer.getRole()) != "admin") return wire::forbiddenError(server, "publisher", answer);
  return {ErrorCode::protocolMismatch,
          server +
              ": the daemon is too old to take versions from programs: update it to the version of this one"};
}

}  // namespace

std::string programOf(const ClientOptions& options) {
  return options.program.empty() ? "psd-trainer " PSD_VERSION : options.program;
}

kj::Promise<Result<DaemonIdentity>> logIn(DaemonConnection& connection, const std::string& program,
                                          const std::string& token) {
  return connection.call([&connection, &program, &token] {
    auto request = connection.login().loginRequest();
    wire::writeLogin(program, token, request);
    return request.send().then(
        [&connection](capnp::Response<schema::LoginResult> answer) -> Result<DaemonIdentity> {
          const std::string& server = connection.server();
          const Status status = wire::readStatus(answer.getStatus());
          if (!status.ok()) return Error{status.error().code, server + ": " + sanitized(status).message()};
          if (answer.getProtocolVersion() != wire::kProtocolVersion) {
            return Error{ErrorCode::protocolMismatch,
                         fmt::format("{}: the daemon speaks protocol version {}, this program version {}",
                                     server, answer.getProtocolVersion(), wire::kProtocolVersion)};
          }
          if (!answer.hasReading()) return wire::forbiddenError(server, "reader", answer);
          kj::Maybe<schema::Training::Client> training;
          if (answer.hasTraining()) training = answer.getTraining();
          kj::Maybe<schema::Admin::Client> admin;
          if (answer.hasAdmin()) admin = answer.getAdmin();
          connection.setRoles(answer.getReading(), kj::mv(training), kj::mv(admin),
                              wire::forbiddenError(server, "trainer", answer),
                              wire::forbiddenError(server, "admin", answer));
          kj::Maybe<schema::Publishing::Client> publishing;
          if (answer.hasPublishing()) publishing = answer.getPublishing();
          connection.setPublishing(kj::mv(publishing), mayNotPublish(server, answer));
          return readIdentity(server, answer);
        },
        [&connection](kj::Exception&& exception) -> Result<DaemonIdentity> {
          if (exception.getType() != kj::Exception::Type::UNIMPLEMENTED) {
            kj::throwFatalException(kj::mv(exception));
          }
          return Error{
              ErrorCode::protocolMismatch,
              fmt::format("{}: the daemon speaks another protocol than version {}, which this program speaks",
                          connection.server(), wire::kProtocolVersion)};
        });
  });
}

kj::Promise<Result<Admission>> joinAs(DaemonConnection& connection, const JoinRequest& join,
                                      const ModelSpec& model, uint64_t chunkBytes) {
  return connection.call([&]() -> kj::Promise<Result<Admission>> {
    auto& training = connection.training();
    if (training == nullptr) return Result<Admission>(connection.mayNotTrain());
    auto request = KJ_ASSERT_NONNULL(training).joinRequest();
    request.setRank(join.membership.rank.value);
    request.setWorldSize(join.membership.worldSize);
    request.setAnyRank(join.membership.anyRank);
    request.setHost(hostName().c_str());
    request.setPid(static_cast<uint32_t>(getpid()));
    request.setIncarnation(join.incarnation);
    request.setDaemon(join.lastDaemon);
    request.setMove(join.move);
    request.setCodec(join.codecs.push.c_str());
    request.setPullCodec(join.codecs.pull.c_str());
    request.setAverages(join.averages);
    request.setBridges(join.bridges);
    request.setOptimizer(join.optimizer.c_str());
    wire::writeModel(model, request.initModel());
    auto held = request.initHeld(static_cast<kj::uint>(join.held.size()));
    for (kj::uint i = 0; i < held.size(); i++) {
      held[i].setStep(join.held[i].step.value);
      const SampleRange& range = join.held[i].range;
      held[i].setEpoch(range.epoch);
      held[i].setBegin(range.begin);
      held[i].setCount(static_cast<uint32_t>(range.count));
    }
    return request.send().then([&connection, model, chunkBytes, incarnation = join.incarnation](
                                   capnp::Response<schema::JoinResult> answer) -> Result<Admission> {
      if (answer.isError()) return sanitized(wire::readError(answer.getError()));
      return readJoined(connection, answer.getJoined(), model, chunkBytes, incarnation);
    });
  });
}

Result<FormedGroup> readGroup(schema::GroupResult::Reader answer) {
  if (answer.isError()) return sanitized(wire::readError(answer.getError()));
  const auto formed = answer.getFormed();
  FormedGroup group{.generation = formed.getGeneration(),
                    .index = formed.getIndex(),
                    .reached = Version{formed.getReached()}};
  bool sound = formed.getGeneration() != 0 && formed.getIndex() < formed.getMembers().size();
  for (const auto member : formed.getMembers()) {
    const uint32_t port = member.getPort();
    sound = sound && port > 0 && port <= UINT16_MAX && member.getHost().size() <= kAveragingHostBytesMax;
    if (!sound) break;
    group.members.push_back({Rank{member.getRank()}, printable(wire::textIn(member.getHost()), 300),
                             static_cast<uint16_t>(port)});
  }
  if (sound) return group;
  return Error{ErrorCode::protocolMismatch, "the daemon's averaging group is invalid"};
}

kj::Promise<Status> attachTo(DaemonConnection& connection, const SessionTerms& terms) {
  return connection.call([&]() -> kj::Promise<Status> {
    auto& training = connection.training();
    if (training == nullptr) return Status(connection.mayNotTrain());
    auto request = KJ_ASSERT_NONNULL(training).attachRequest();
    request.setRank(terms.rank.value);
    request.setIncarnation(terms.incarnation);
    request.setAttachment(terms.attachment);
    return request.send().then([&connection](capnp::Response<schema::AttachResult> answer) -> Status {
      if (answer.isError()) return sanitized(wire::readError(answer.getError()));
      connection.setTrainer(answer.getSession());
      return {};
    });
  });
}

kj::Promise<Result<Admission>> observeAs(DaemonConnection& connection, const ModelSpec& model,
                                         const std::string& pullCodec, uint64_t chunkBytes) {
  return connection.call([&] {
    auto request = connection.reading().observeRequest();
    wire::writeModel(model, request.initModel());
    request.setPullCodec(pullCodec.c_str());
    return request.send().then(
        [&connection, chunkBytes](capnp::Response<schema::ObserveResult> answer) -> Result<Admission> {
          if (answer.isError()) return sanitized(wire::readError(answer.getError()));
          auto observing = answer.getObserving();
          Admission in;
          PSD_ASSIGN_OR_RETURN(in.model, wire::readModel(observing.getModel()));
          PSD_RETURN_IF_ERROR(readAccess(observing.getAccess(), chunkBytes, in.model, in.terms));
          PSD_ASSIGN_OR_RETURN(in.terms.pullCodec,
                               agreedCodec(connection.server(), wire::textIn(observing.getPullCodec())));
          in.offer = readOffer(observing.getAccess());
          connection.setReader(observing.getReader());
          return in;
        });
  });
}

}  // namespace psd
