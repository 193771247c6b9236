#include "trainer/client/channel.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "trainer/client/samples_answer.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr kj::Duration kGoodbyeTime = 2 * kj::SECONDS;
constexpr Version kUnread{UINT64_MAX};
constexpr uint32_t kWindow = 4;  // slices in flight, initially
constexpr std::string_view kUnixScheme = "unix:";

/// Largest window: the bandwidth-delay product of 2.5 Gbit/s and 100 ms.
uint32_t largestWindow(uint64_t sliceElements) {
  constexpr uint64_t kBytesMost = 32 << 20, kSlicesMost = 64;
  const uint64_t sliceBytes = std::max<uint64_t>(sliceElements, 1) * sizeof(float);
  return static_cast<uint32_t>(std::clamp<uint64_t>(kBytesMost / sliceBytes, kWindow, kSlicesMost));
}

/// Limit on the bytes of outstanding answers to pulls: three quarters of what the daemon buffers for a
/// connection, as it counts an answer until slightly after it was sent.
uint64_t answerBytes(const SessionTerms& terms) { return terms.outgoingBytes / 4 * 3; }

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Keeps the oldest version of a shard's slices: updates may happen between them.
Status add(PullInfo& info, ShardId shard, const Result<SlicePulled>& pulled) {
  if (!pulled.ok()) return pulled.status();
  Version& oldest = info.versions[shard.value];
  oldest = std::min(oldest, pulled->version);
  info.bytes += pulled->bytes;
  info.knownRows += pulled->known;
  return {};
}

Status add(PushInfo& info, ShardId shard, const SlicePushed& pushed) {
  if (!pushed.status.ok()) return pushed.status;
  Version& newest = info.versions[shard.value];
  newest = std::max(newest, pushed.version);
  info.staleness = std::max(info.staleness, pushed.staleness);
  info.outcome = std::max(info.outcome, pushed.outcome);
  info.bytes += pushed.bytes;
  return {};
}

}  // namespace

Channel::Channel(kj::AsyncIoContext& io, wire::Socket socket, std::string server,
                 const ClientOptions& options)
    : chunkBytes_(options.chunkBytes),
      deviceChunkBytes_(options.deviceChunkBytes),
      ringChunkBytes_(options.ringChunkBytes),
      window_(options.window == 0 ? kWindow : options.window),
      windowIsGiven_(options.window != 0),
      windowGrows_(options.window == 0 && !server.starts_with(kUnixScheme)),
      program_(programOf(options)),
      token_(options.token),
      connection_(io, kj::mv(socket), std::move(server), options.spin, options.transport != Transport::rpc),
      transports_(connection_, options.transport, options.cudaDevice) {
  connection_.beforeTearDown([this] {
    livenessWatch_ = nullptr;
    notice_ = kj::READY_NOW;
    nextNotice_ = kj::READY_NOW;
    moved_ = kj::READY_NOW;
    lost_ = kj::READY_NOW;
    transports_.close(connection_.ended().value_or(Error{ErrorCode::unavailable, "the client has ended"}));
  });
}

void Channel::watchLiveness(std::chrono::milliseconds silence) {
  if (connection_.ended()) return;
  livenessWatch_ = std::make_unique<LivenessWatch>(connection_, silence, [this](const Error& why) {
    // Deferred: fail() destroys the watch, which is the caller.
    ending_ = kj::evalLater([this, why] { return fail(why); }).eagerlyEvaluate(nullptr);
  });
}

void Channel::watchSession() {
  watchNotice();
  if (terms_.leaseMs != 0) watchLiveness(std::chrono::milliseconds(terms_.leaseMs));
}

void Channel::watchNotice(uint64_t move) {
  auto request = connection_.trainer().noticeRequest();
  request.setMove(move);
  notice_ = request.send()
                .then([this](capnp::Response<schema::Trainer::NoticeResults> notice) {
                  const std::string daemon = "the daemon at " + connection_.server();
                  if (notice.hasRevoked()) {
                    const Error revoked = sanitized(wire::readError(notice.getRevoked()));
                    return connection_.announceEnd({revoked.code, daemon + ": " + revoked.message});
                  }
                  if (const uint64_t asked = notice.getMove(); asked != 0) {
                    if (pendingMove_) pendingMove_->set(asked, notice.getMoveDaemons());
                    // Deferred: watchNotice() replaces the promise that runs this.
                    nextNotice_ =
                        kj::evalLater([this, asked] { watchNotice(asked); }).eagerlyEvaluate(nullptr);
                    return;
                  }
                  if (!notice.getShuttingDown()) return;
                  const std::string reason = printable(wire::textIn(notice.getReason()));
                  connection_.announceEnd(
                      notice.getRestarting()
                          ? Error{ErrorCode::unavailable, daemon + " restarts: " + reason}
                          : Error{ErrorCode::shuttingDown, daemon + " is shutting down: " + reason});
                })
                .eagerlyEvaluate([](kj::Exception&&) {});  // a broken connection shows in the next call
}

uint64_t Channel::chooseSliceElements(const TransportOffer& offer) const {
  uint64_t bytes = chunkBytes_;
  if (transports_.shouldUseDeviceRings(offer, terms_)) {  // two slices each way: one is copied, one travels
    bytes = std::max(bytes, std::min(deviceChunkBytes_, offer.ringBytesMax / 4));
  } else if (transports_.shouldUseLargeSlices(offer, terms_)) {
    const uint64_t all = terms_.plan.totalElements() * sizeof(float);
    bytes = ringSliceBytes(all, bytes, ringChunkBytes_, offer.ringBytesMax);
  }
  return bytes / sizeof(float);
}

void Channel::sizeWindows() {
  const uint32_t largest = largestWindow(largestSlice(terms_.slices));
  const uint32_t limit = windowGrows_ ? std::max(largest, window_) : window_;
  // A reader that observes again may have earlier pulls in progress.
  pulling_.setLimits(window_, limit);
  pushing_.setLimits(window_, limit);
  answers_.setBytes(answerBytes(terms_));
}

kj::Promise<Status> Channel::begin(Admission in, uint64_t sliceElements) {
  terms_ = std::move(in.terms);
  sliceElements_ = sliceElements != 0 ? sliceElements : chooseSliceElements(in.offer);
  terms_.slices = cutIntoSlices(terms_.plan, std::min(sliceElements_, terms_.sliceElementsMax));
  sizeWindows();
  carried_ = terms_.slices;
  if (connection_.canPush()) watchSession();
  const auto ringSlices = windowIsGiven_ ? window_ : ringWindow(terms_.slices, window_);
  return transports_.open(std::move(in.offer), terms_, window_, ringSlices).then([this](Status status) {
    // Pulls from shared memory make no calls, in which the end of the connection would show.
    if (status.ok() && transports_.sharedModel())
      lost_ = connection_.whenDisconnected().eagerlyEvaluate(nullptr);
    return status;
  });
}

kj::Promise<Result<JoinAnswer>> Channel::join(const JoinRequest& request, const ModelSpec& model) {
  return connection_.call([&] {
    return joinAs(connection_, request, model, chunkBytes_)
        .then([this, sliceElements =
                         request.sliceElements](Result<Admission> in) -> kj::Promise<Result<JoinAnswer>> {
          if (!in.ok()) return Result<JoinAnswer>(in.error());
          JoinAnswer answer = in->answer;
          auto begun = begin(std::move(*in), sliceElements);
          answer.sliceElements = sliceElements_;
          return begun.then([answer](Status status) -> Result<JoinAnswer> {
            if (!status.ok()) return status.error();
            return answer;
          });
        });
  });
}

kj::Promise<Status> Channel::attach(const SessionTerms& terms) {
  terms_ = terms;
  sizeWindows();
  return connection_.call([&] {
    return attachTo(connection_, terms).then([this](Status status) {
      if (status.ok() && connection_.canPush()) watchSession();
      return status;
    });
  });
}

kj::Promise<Result<ModelSpec>> Channel::observe(const ModelSpec& model, const std::string& pullCodec) {
  return connection_.call([&] {
    return observeAs(connection_, model, pullCodec, chunkBytes_)
        .then([this](Result<Admission> in) -> kj::Promise<Result<ModelSpec>> {
          if (!in.ok()) return Result<ModelSpec>(in.error());
          ModelSpec served = std::move(in->model);
          return begin(std::move(*in), 0)
              .then([this, served = std::move(served)](Status status) mutable -> Result<ModelSpec> {
                if (!status.ok()) return status.error();
                carry(0, 1, nullptr);
                return std::move(served);
              });
        });
  });
}

std::shared_ptr<EncodedPushes> Channel::carry(uint32_t number, uint32_t links,
                                              const std::shared_ptr<EncodedPushes>& encoder) {
  links_ = links;
  number_ = number;
  carried_.clear();
  std::copy_if(terms_.slices.begin(), terms_.slices.end(), std::back_inserter(carried_),
               [&](const Slice& slice) { return linkOf(slice.shard, links) == number; });
  transports_.useRowCodecs(terms_.codec, terms_.pullCodec);
  std::shared_ptr<EncodedPushes> own;
  // Another daemon may cut the model differently: then the residual of earlier pushes is discarded.
  if (terms_.codec && encoder && encoder->fits(*terms_.codec, carried_)) own = encoder;
  if (terms_.codec && !own) {
    own = std::make_shared<EncodedPushes>(terms_.codec, carried_, terms_.rank.value + 1);
  }
  if (own || terms_.pullCodec) transports_.useCodecs(own, terms_.pullCodec);
  if (terms_.takesSparse) transports_.usePushesOfNonZeros();
  if (pullsDeltas()) transports_.useDeltas(*findDecoder(terms_.localSteps.deltas));
  return own;
}

kj::Promise<Result<StartRole>> Channel::awaitModel() {
  return connection_.call([this] {
    return connection_.trainer().awaitModelRequest().send().then(
        [](capnp::Response<schema::AwaitResult> answer) -> Result<StartRole> {
          if (answer.isError()) return sanitized(wire::readError(answer.getError()));
          return answer.isMustInitialize() ? StartRole::initializeModel : StartRole::go;
        });
  });
}

kj::Promise<Status> Channel::initializeSlice(const Slice& slice, ConstArenaValues values) {
  auto request = connection_.trainer().initializeRequest(capnp::MessageSize{16, 0});
  request.setShard(slice.shard.value);
  request.setOffset(slice.offset);
  const auto sent = inDtypeOf(slice, values);
  if (!sent.ok()) return sent.status();
  if (sent->owner) connection_.stream().pin(sent->bytes.data(), sent->owner);
  request.adoptValues(
      wire::referenceBytes(static_cast<schema::Trainer::InitializeParams::Builder&>(request), sent->bytes));
  return request.send().then([](capnp::Response<schema::Trainer::InitializeResults> answer) {
    return wire::readStatus(answer.getStatus());
  });
}

kj::Promise<Result<PushInfo>> Channel::initializeModel(ConstArenaValues values, Step step) {
  return connection_.call([this, values, step, start = Clock::now()] {
    return sendInWindow(terms_.slices, slicesInFlight(terms_.slices, window_, terms_.rowValuesMax),
                        [this, values](const Slice& slice) {
                          return initializeSlice(slice,
                                                 values.part(slice.arena, slice.count, slice.nativeAt));
                        })
        .then([this, step, start](Status status) -> kj::Promise<Result<PushInfo>> {
          if (!status.ok()) return Result<PushInfo>(sanitized(status.error()));
          auto request = connection_.trainer().initializedRequest();
          request.setStep(step.value);
          return request.send().then(
              [start](capnp::Response<schema::Trainer::InitializedResults> answer) -> Result<PushInfo> {
                const Status status = wire::readStatus(answer.getStatus());
                if (!status.ok()) return sanitized(status.error());
                return PushInfo{.seconds = secondsSince(start)};
              });
        });
  });
}

kj::Promise<Result<PullInfo>> Channel::pull(ArenaValues destination, bool onDevice,
                                            std::optional<uint32_t> fragment) {
  return connection_.call([this, destination, onDevice, fragment]() -> kj::Promise<Result<PullInfo>> {
    if (!connection_.canPull()) {
      return Result<PullInfo>(ErrorCode::invalidArgument, "pull() comes after join() or observe()");
    }
    const auto start = Clock::now();
    const auto way = transports_.choose(onDevice, terms_.hasSixteenBitShards());
    if (!way.ok()) return Result<PullInfo>(way.error());
    auto info = kj::heap<PullInfo>();
    info->versions.resize(terms_.blockCount(), kUnread);
    const auto send = [this, destination, number = ++lastPull_, way = *way,
                       &info = *info](const Slice& slice) {
      return answers_.call(slice.count * sizeof(float), [this, destination, number, slice, way, &info] {
        const auto sent = pulling_.sent(Clock::now());
        return way.pull(number, slice, destination)
            .then([this, &info, slice, sent](Result<SlicePulled> pulled) {
              pulling_.answered(sent, Clock::now());
              return add(info, slice.shard, pulled);
            });
      });
    };
    auto slices = kj::heap<std::vector<Slice>>(carriedOf(fragment));
    return sendInWindow(*slices, inFlight(*slices, way->pullWindow(), pulling_), send)
        .attach(kj::mv(slices))
        .then([start, info = kj::mv(info)](Status status) mutable -> Result<PullInfo> {
          if (!status.ok()) return status.error();
          info->seconds = secondsSince(start);
          std::ranges::replace(info->versions, kUnread, Version{});  // shards that were not pulled
          return std::move(*info);
        });
  });
}

std::vector<Slice> Channel::carriedOf(std::optional<uint32_t> fragment) const {
  std::vector<Slice> slices = carried_;
  std::erase_if(slices, [&](const Slice& slice) { return !terms_.isOf(fragment, slice.shard); });
  return slices;
}

SliceQueue::Window Channel::inFlight(const std::vector<Slice>& slices, uint32_t limit,
                                     const GrowingWindow& grown) const {
  const uint32_t few = slicesInFlight(slices, window_, terms_.rowValuesMax);
  return [few, limit, &grown] { return std::min(std::max(few, grown.slices()), limit); };
}

std::vector<RowSlice> Channel::carriedRows(const RowBatch* rows) const {
  std::vector<RowSlice> slices =
      rows ? cutRows(*rows, terms_.rowShards, terms_.rowValuesMax) : noRows(terms_.rowShards);
  std::erase_if(slices, [this](const RowSlice& slice) { return linkOf(slice.shard, links_) != number_; });
  return slices;
}

kj::Promise<Result<PullInfo>> Channel::pullRows(const std::shared_ptr<RowBatch>& rows) {
  return connection_.call([this, rows]() -> kj::Promise<Result<PullInfo>> {
    if (!connection_.canPull()) {
      return Result<PullInfo>(ErrorCode::invalidArgument, "pull() comes after join() or observe()");
    }
    const auto start = Clock::now();
    auto info = kj::heap<PullInfo>();
    info->versions.resize(terms_.blockCount(), kUnread);
    auto slices = kj::heap<std::vector<RowSlice>>(carriedRows(rows.get()));
    std::erase_if(*slices, [](const RowSlice& slice) { return slice.count == 0; });
    const auto send = [this, rows, &slices = *slices, number = ++lastPull_, &info = *info](size_t index) {
      const RowSlice& slice = slices[index];
      return answers_.call(slice.values * sizeof(float), [this, rows, number, &slice, &info] {
        return transports_.rows()
            .pull(number, slice, *rows)
            .then([&info, shard = slice.shard](Result<SlicePulled> pulled) {
              return add(info, shard, pulled);
            });
      });
    };
    return sendInWindow(slices->size(), window_, send)
        .attach(kj::mv(slices), std::shared_ptr<RowBatch>(rows))
        .then([start, info = kj::mv(info)](Status status) mutable -> Result<PullInfo> {
          if (!status.ok()) return status.error();
          info->seconds = secondsSince(start);
          std::ranges::replace(info->versions, kUnread, Version{});
          return std::move(*info);
        });
  });
}

uint32_t Channel::partsOf(const PushRequest& request) const {
  size_t parts = terms_.blockCount();
  if (request.gradient.empty()) {
    parts = terms_.rowShards.size();
  } else if (request.fragment) {
    parts =
        static_cast<size_t>(std::ranges::count(terms_.plan.shards, *request.fragment, &ShardRange::group));
  } else if (!request.rows && terms_.allReduce.timeout.count() > 0) {
    parts = terms_.plan.shards.size();
  }
  return static_cast<uint32_t>(parts);
}

std::shared_ptr<const std::vector<Hyperparameters>> Channel::hyperparametersOf(
    const PushRequest& request) const {
  if (!request.hyperparameters) return nullptr;
  auto ofBlock = std::make_shared<std::vector<Hyperparameters>>();
  for (const ShardRange& shard : terms_.plan.shards) {
    ofBlock->push_back(request.hyperparameters->elements.part(shard.begin, shard.count));
  }
  ofBlock->resize(terms_.blockCount(), request.hyperparameters->tables);
  return ofBlock;
}

kj::Promise<Result<PushInfo>> Channel::beginPush(PushRequest request) {
  const bool rowsOnly = request.gradient.empty();
  // Under allreduce the trainer that pushes the average has no rows to push with it.
  const bool tensorsOnly = !rowsOnly && !request.rows && terms_.allReduce.timeout.count() > 0;
  request.parts = partsOf(request);
  request.ofBlock = hyperparametersOf(request);
  return connection_.call(
      [this, rowsOnly, tensorsOnly, request = std::move(request)]() -> kj::Promise<Result<PushInfo>> {
        if (!connection_.canPush()) {
          return Result<PushInfo>(ErrorCode::invalidArgument, "push() comes after join()");
        }
        const auto start = Clock::now();
        const auto way = transports_.choose(request.onDevice, terms_.hasSixteenBitShards());
        if (!way.ok()) return Result<PushInfo>(way.error());
        const auto info = std::make_shared<PushInfo>();
        info->versions.resize(terms_.blockCount());
        info->answeredBy.push_back({terms_.daemon, terms_.term});
        // The slices of the arena first, then those of rows.
        const auto rows = std::make_shared<const std::vector<RowSlice>>(
            tensorsOnly ? std::vector<RowSlice>() : carriedRows(request.rows.get()));
        const size_t dense = rowsOnly ? 0 : carried_.size();
        const auto send = [this, request, info, rows, dense, way = *way](size_t index) {
          if (index >= dense) return sendRows(request, (*rows)[index - dense], *info);
          const Slice& slice = carried_[index];
          const auto sent = pushing_.sent(Clock::now());
          return way.push(request, slice).then([this, info, slice, sent](const SlicePushed& pushed) {
            pushing_.answered(sent, Clock::now());
            return add(*info, slice.shard, pushed);
          });
        };
        const std::vector<Slice> slices = rowsOnly ? std::vector<Slice>() : carriedOf(request.fragment);
        SliceQueue::Window window = inFlight(slices, way->pushWindow(), pushing_);
        if (!rows->empty()) window = [limit = std::min(window_, way->pushWindow())] { return limit; };
        return pushes_.add(request.step, slices.size() + rows->size(), std::move(window), send)
            .then([this, rowsOnly, request, start, info](Status status) -> Result<PushInfo> {
              const bool answered = status.ok() || !isLost(status.error());
              if (answered && links_ == 1 && !rowsOnly) concludePush(request.step, *request.dropped);
              if (!status.ok()) return status.error();
              info->seconds = secondsSince(start);
              return std::move(*info);
            });
      });
}

kj::Promise<Status> Channel::sendRows(const PushRequest& request, const RowSlice& slice, PushInfo& info) {
  return transports_.rows()
      .push(request, slice)
      .then([&request, &info, shard = slice.shard](const SlicePushed& pushed) {
        request.dropped->insert(request.dropped->end(), pushed.dropped.begin(), pushed.dropped.end());
        return add(info, shard, pushed);
      });
}

void Channel::pushReady(Step step, std::vector<size_t> slices, std::optional<uint32_t> fragment) {
  std::erase_if(slices, [&](size_t index) {
    return index < carried_.size() && !terms_.isOf(fragment, carried_[index].shard);
  });
  pushes_.ready(step, slices);
}

void Channel::rowsReady(Step step, bool rowsOnly) {
  std::vector<size_t> slices(pushes_.slicesOf(step));
  std::iota(slices.begin(), slices.end(), size_t{0});
  const size_t dense = rowsOnly ? 0 : std::min(carried_.size(), slices.size());
  slices.erase(slices.begin(), slices.begin() + static_cast<ptrdiff_t>(dense));
  pushes_.ready(step, slices);
}

kj::Promise<Result<AssignedSamples>> Channel::takeSamples(const SamplesRequest& samples) {
  return connection_.call([&]() -> kj::Promise<Result<AssignedSamples>> {
    if (!connection_.canPush()) {
      return Result<AssignedSamples>(ErrorCode::invalidArgument, "takeSamples() comes after join()");
    }
    auto request = connection_.trainer().takeSamplesRequest();
    request.setStep(samples.step.value);
    request.setCount(samples.count);
    request.setSamples(samples.samples);
    request.setEpochs(samples.epochs);
    request.setFirstEpoch(samples.firstEpoch);
    request.setWait(samples.wait);
    request.setNominal(samples.nominal);
    request.setSampleSeconds(samples.sampleSeconds);
    return request.send().then(
        [this, sized = samples.nominal != 0](capnp::Response<schema::SamplesResult> answer) {
          return readSamples(answer, terms_, sized);
        });
  });
}

kj::Promise<Result<RoundDue>> Channel::roundDue(Version version, uint32_t fragment) {
  return connection_.call([this, version, fragment]() -> kj::Promise<Result<RoundDue>> {
    if (!connection_.canPush()) {
      return Result<RoundDue>(ErrorCode::invalidArgument, "roundDue() comes after join()");
    }
    auto request = connection_.trainer().roundDueRequest();
    request.setVersion(version.value);
    const auto first = std::ranges::find(terms_.plan.shards, fragment, &ShardRange::group);
    if (first != terms_.plan.shards.end()) request.setShard(first->id.value);
    return request.send().then([](capnp::Response<schema::RoundDueResult> answer) -> Result<RoundDue> {
      switch (answer.which()) {
        case schema::RoundDueResult::CLOSING: return RoundDue::closing;
        case schema::RoundDueResult::CLOSED: return RoundDue::closed;
        case schema::RoundDueResult::STEPS_DONE: return RoundDue::stepsDone;
        case schema::RoundDueResult::GROUP_WANTED: return RoundDue::groupWanted;
        case schema::RoundDueResult::ERROR: return sanitized(wire::readError(answer.getError()));
      }
      return Error{ErrorCode::protocolMismatch, "roundDue() has an unknown answer"};
    });
  });
}

kj::Promise<Result<FormedGroup>> Channel::formAveragingGroup(uint64_t after, const AveragingMember& where) {
  return connection_.call([this, after, where]() -> kj::Promise<Result<FormedGroup>> {
    if (!connection_.canPush()) {
      return Result<FormedGroup>(ErrorCode::invalidArgument, "formAveragingGroup() comes after join()");
    }
    auto request = connection_.trainer().formAveragingGroupRequest();
    request.setAfter(after);
    request.setHost(where.host.c_str());
    request.setPort(where.port);
    return request.send().then([](capnp::Response<schema::GroupResult> answer) { return readGroup(answer); });
  });
}

kj::Promise<Result<MachineProgress>> Channel::progress(bool settled) {
  return connection_.call([this, settled]() -> kj::Promise<Result<MachineProgress>> {
    if (!connection_.canPush()) {
      return Result<MachineProgress>(ErrorCode::invalidArgument, "progress() comes after join()");
    }
    auto request = connection_.trainer().progressRequest();
    request.setSettled(settled);
    return request.send().then([](capnp::Response<schema::ProgressResult> answer) -> Result<MachineProgress> {
      if (answer.isError()) return sanitized(wire::readError(answer.getError()));
      const auto told = answer.getProgress();
      MachineProgress progress{.trainers = told.getTrainers(), .over = told.getOver()};
      for (const uint64_t version : told.getVersions()) progress.versions.push_back(Version{version});
      for (const uint64_t version : told.getBegan()) progress.began.push_back(Version{version});
      return progress;
    });
  });
}

void Channel::report(Step step, std::span<const NamedValue> values) {
  if (!connection_.ended() && connection_.canPush()) reports_.add(step, values);
}

kj::Promise<void> Channel::sendReport(Step step, std::span<const NamedValue> values) {
  auto request = connection_.trainer().reportRequest();
  request.setStep(step.value);
  auto out = request.initValues(static_cast<kj::uint>(values.size()));
  for (kj::uint i = 0; i < out.size(); i++) {
    out[i].setName(values[i].name.c_str());
    out[i].setValue(values[i].value);
  }
  return request.send().ignoreResult();
}

kj::Promise<Result<std::vector<Rank>>> Channel::waiters() {
  return connection_.call([this] {
    return connection_.reading().waitersRequest().send().then(
        [](capnp::Response<schema::Reading::WaitersResults> answer) -> Result<std::vector<Rank>> {
          std::vector<Rank> ranks;
          for (const uint32_t rank : answer.getRanks()) ranks.push_back(Rank{rank});
          return ranks;
        });
  });
}

kj::Promise<void> Channel::pingRepeatedly(uint64_t left, std::vector<double>& seconds) {
  if (left == 0) return kj::READY_NOW;
  const auto start = Clock::now();
  return connection_.reading()
      .pingRequest(capnp::MessageSize{4, 0})
      .send()
      .then([this, left, start, &seconds](auto&&) {
        seconds.push_back(secondsSince(start));
        return pingRepeatedly(left - 1, seconds);
      });
}

kj::Promise<Result<PingInfo>> Channel::ping(uint64_t calls, uint32_t outstanding) {
  return connection_.call([this, calls, outstanding] {
    const auto start = Clock::now();
    auto info = kj::heap<PingInfo>();
    info->seconds.reserve(calls);
    const uint64_t lines = std::max<uint64_t>(1, std::min<uint64_t>(outstanding, calls));
    auto running = kj::heapArrayBuilder<kj::Promise<void>>(lines);
    for (uint64_t i = 0; i < lines; i++) {
      running.add(pingRepeatedly(calls / lines + (i < calls % lines ? 1 : 0), info->seconds)
                      .eagerlyEvaluate(nullptr));
    }
    return kj::joinPromises(running.finish())
        .then([start, info = kj::mv(info)]() mutable -> Result<PingInfo> {
          info->elapsed = secondsSince(start);
          return std::move(*info);
        });
  });
}

kj::Promise<Status> Channel::leave() {
  return connection_.call([this]() -> kj::Promise<Status> {
    if (!connection_.canPush()) return Status();
    return connection_.trainer().leaveRequest().send().then(
        [](capnp::Response<schema::Trainer::LeaveResults> answer) {
          return sanitized(wire::readStatus(answer.getStatus()));
        });
  });
}

kj::Promise<void> Channel::leaveAndFail(const Error& why) {
  return connection_.timer()
      .timeoutAfter(kGoodbyeTime, leave().ignoreResult())
      .catch_([](kj::Exception&&) {})  // the daemon does not answer
      .then([this, why] { return fail(why); });
}

kj::Promise<void> Channel::fail(const Error& why) {
  connection_.end(why);
  pushes_.stopAll(*connection_.ended());
  // Off the stack of the caller.
  return kj::evalLater([this] { connection_.tearDown(); });
}

}  // namespace psd
