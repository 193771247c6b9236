// The side of a Channel that gets a trainer's session and keeps it: what runs beside its calls.

#include <algorithm>
#include <chrono>

#include <unistd.h>

#include "common/os/host.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "trainer/client/channel.h"
#include "trainer/client/cleared.h"

namespace psd {
namespace {

constexpr kj::Duration kGoodbyeTime = 2 * kj::SECONDS;
constexpr uint64_t kBeatsPerSilence = 4;
constexpr std::chrono::milliseconds kSilenceMin{40};  // whatever lease a daemon grants

/// What breaks the connection shows in the next call.
class NoFailures final : public kj::TaskSet::ErrorHandler {
 public:
  void taskFailed(kj::Exception&&) override {}
} noFailures;

/// The elements of the shards that are marked, those of neighbours as one range.
std::vector<ElementRange> elementsOf(const ShardPlan& plan, capnp::List<bool>::Reader marked) {
  std::vector<ElementRange> ranges;
  for (kj::uint i = 0; i < marked.size(); i++) {
    if (!marked[i]) continue;
    const ShardRange& shard = plan.shards[i];
    if (!ranges.empty() && ranges.back().begin + ranges.back().count == shard.begin) {
      ranges.back().count += shard.count;
    } else {
      ranges.push_back({shard.begin, shard.count});
    }
  }
  return ranges;
}

/// `sized`: the daemon was asked to choose the number.
Result<DealtSamples> readSamples(schema::SamplesResult::Reader answer, const ShardPlan& plan, bool sized) {
  using What = DealtSamples::What;
  if (answer.isError()) return cleared(wire::readError(answer.getError()));
  if (answer.isFinished()) return DealtSamples{.what = What::finished};
  if (!answer.isDealt()) return DealtSamples{};
  const auto dealt = answer.getDealt();
  const auto unweighted = dealt.getUnweighted();
  if (unweighted.size() != (sized ? plan.shards.size() : 0)) {
    return Error{ErrorCode::protocolMismatch, "the daemon does not tell which shards weigh gradients"};
  }
  return DealtSamples{What::range, dealt.getEpoch(), dealt.getBegin(), dealt.getCount(),
                      elementsOf(plan, unweighted)};
}

}  // namespace

void Channel::watchNotice() {
  notice_ = KJ_ASSERT_NONNULL(trainer_)
                .noticeRequest()
                .send()
                .then([this](capnp::Response<schema::Trainer::NoticeResults> notice) {
                  if (!notice.getShuttingDown()) return;
                  const std::string reason = printable(wire::textIn(notice.getReason()));
                  ended_ =
                      notice.getComesBack()
                          ? Error{ErrorCode::unavailable, "the daemon at " + server_ + " restarts: " + reason}
                          : Error{ErrorCode::shuttingDown,
                                  "the daemon at " + server_ + " is shutting down: " + reason};
                  // Closing now lets the daemon go; calls in flight fail with the reason above.
                  if (socket_) socket_->shutdownWrite();
                })
                .eagerlyEvaluate([](kj::Exception&&) {});  // a broken connection shows in the next call
}

kj::Promise<Result<JoinAnswer>> Channel::join(const JoinOrder& order, const ModelSpec& model,
                                              uint64_t chunkBytes, uint32_t window) {
  if (ended_) return Result<JoinAnswer>(*ended_);
  if (training_ == nullptr) {
    return Result<JoinAnswer>(ErrorCode::invalidArgument, server_ + " does not let this program train");
  }
  auto request = KJ_ASSERT_NONNULL(training_).joinRequest();
  request.setRank(order.membership.rank.value);
  request.setWorldSize(order.membership.worldSize);
  request.setAnyRank(order.membership.anyRank);
  request.setHost(hostName().c_str());
  request.setPid(static_cast<uint32_t>(getpid()));
  request.setIncarnation(order.incarnation);
  request.setDaemon(order.lastDaemon);
  request.setCodec(order.codecs.push.c_str());
  request.setPullCodec(order.codecs.pull.c_str());
  wire::writeModel(model, request.initModel());
  auto held = request.initHeld(static_cast<kj::uint>(order.held.size()));
  for (kj::uint i = 0; i < held.size(); i++) {
    held[i].setStep(order.held[i].step.value);
    const SampleRange& range = order.held[i].range;
    held[i].setEpoch(range.epoch);
    held[i].setBegin(range.begin);
    held[i].setCount(static_cast<uint32_t>(range.count));
  }
  return guarded<JoinAnswer>(
      request.send().then([this, chunkBytes, window, model, order](
                              capnp::Response<schema::JoinResult> answer) -> kj::Promise<Result<JoinAnswer>> {
        if (answer.isError()) return Result<JoinAnswer>(cleared(wire::readError(answer.getError())));
        auto joined = answer.getJoined();
        Status status = readAccess(joined.getAccess(), chunkBytes, model);
        if (status.ok()) status = agreeOn(joined);
        if (!status.ok()) return Result<JoinAnswer>(status.error());
        terms_.rank = Rank{joined.getRank()};
        terms_.incarnation = order.incarnation;
        terms_.attachment = joined.getAttachment();
        terms_.leaseMs = joined.getLeaseMs();
        hold(joined.getSession());
        const JoinAnswer info{terms_.rank, joined.getWorldSize(), joined.getMustInitialize(),
                              joined.getResumed(), joined.getDaemon()};
        auto opened = openRings(joined.getAccess(), window);
        return opened
            .then([info](Status status) -> Result<JoinAnswer> {
              if (!status.ok()) return status.error();
              return info;
            })
            .attach(kj::mv(answer));
      }));
}

kj::Promise<Status> Channel::openRings(schema::ModelAccess::Reader access, uint32_t window) {
  return openDeviceRings(access, window)
      .then([this, access](Status status) -> kj::Promise<Status> {
        if (!status.ok() || deviceRings_) return status;
        return share(access);
      })
      .then([this, access, window](Status status) -> kj::Promise<Status> {
        if (!status.ok()) return status;
        return openRing(access.getRingBytesMax(), window);
      });
}

kj::Promise<Status> Channel::attach(const SessionTerms& terms) {
  if (ended_) return Status(*ended_);
  terms_ = terms;
  auto request = KJ_ASSERT_NONNULL(training_).attachRequest();
  request.setRank(terms.rank.value);
  request.setIncarnation(terms.incarnation);
  request.setAttachment(terms.attachment);
  auto attached = request.send().then([this](capnp::Response<schema::AttachResult> answer) -> Result<bool> {
    if (answer.isError()) return cleared(wire::readError(answer.getError()));
    hold(answer.getSession());
    return true;
  });
  return guarded<bool>(kj::mv(attached)).then([](Result<bool> done) { return done.status(); });
}

void Channel::hold(schema::Trainer::Client session) {
  reader_ = session;
  trainer_ = kj::mv(session);
  watchNotice();
  // A daemon may grant no lease.
  if (terms_.leaseMs != 0) watchSilence(std::chrono::milliseconds(terms_.leaseMs));
}

kj::Promise<Result<DealtSamples>> Channel::takeSamples(const SamplesWish& wish) {
  if (ended_) return Result<DealtSamples>(*ended_);
  if (trainer_ == nullptr) {
    return Result<DealtSamples>(ErrorCode::invalidArgument, "takeSamples() comes after join()");
  }
  auto request = KJ_ASSERT_NONNULL(trainer_).takeSamplesRequest();
  request.setStep(wish.step.value);
  request.setCount(wish.count);
  request.setSamples(wish.samples);
  request.setEpochs(wish.epochs);
  request.setFirstEpoch(wish.firstEpoch);
  request.setWait(wish.wait);
  request.setNominal(wish.nominal);
  request.setSampleSeconds(wish.sampleSeconds);
  const bool sized = wish.nominal != 0;
  return guarded<DealtSamples>(
      request.send().then([this, sized](capnp::Response<schema::SamplesResult> answer) {
        return readSamples(answer, terms_.plan, sized);
      }));
}

void Channel::watchSilence(std::chrono::milliseconds silence) {
  if (ended_) return;
  const kj::Duration interval = std::max(silence, kSilenceMin).count() * kj::MILLISECONDS / kBeatsPerSilence;
  asked_ = kj::heap<kj::TaskSet>(noFailures);
  heardBytes_ = UINT64_MAX;  // nothing was asked before the first beat
  quietBeats_ = 0;
  keptAlive_ = beat(interval).eagerlyEvaluate([](kj::Exception&&) {});
}

kj::Promise<void> Channel::beat(kj::Duration interval) {
  return timer_.afterDelay(interval).then([this, interval]() -> kj::Promise<void> {
    // The answer to a beat may be long behind slices, in the network or in the daemon; so all that comes is a
    // sign of life. Counted in beats, as time in which this process stood still says nothing of the daemon.
    const uint64_t received = stream_->receivedBytes();
    quietBeats_ = received == heardBytes_ ? quietBeats_ + 1 : 0;
    heardBytes_ = received;
    if (quietBeats_ == kBeatsPerSilence) {
      failSoon({ErrorCode::unavailable, "the daemon at " + server_ + " does not answer"});
      return kj::READY_NOW;
    }
    askForLife();
    return beat(interval);
  });
}

void Channel::askForLife() {
  if (trainer_ == nullptr) {
    asked_->add(KJ_ASSERT_NONNULL(reading_).pingRequest(capnp::MessageSize{4, 0}).send().ignoreResult());
    return;
  }
  asked_->add(KJ_ASSERT_NONNULL(trainer_).keepAliveRequest().send().then(
      [this](capnp::Response<schema::Trainer::KeepAliveResults> answer) {
        const Status status = wire::readStatus(answer.getStatus());
        if (!status.ok()) failSoon(cleared(status.error()));
      }));
}

void Channel::failSoon(const Error& why) {
  ending_ = kj::evalLater([this, why] { return fail(why); }).eagerlyEvaluate(nullptr);
}

kj::Promise<void> Channel::leaveAndFail(const Error& why) {
  return timer_.timeoutAfter(kGoodbyeTime, leave().ignoreResult())
      .catch_([](kj::Exception&&) {})  // the daemon does not answer
      .then([this, why] { return fail(why); });
}

kj::Promise<void> Channel::fail(const Error& why) {
  end(why);
  pushes_.stopAll(*ended_);
  // Off the stack of whoever found out.
  return kj::evalLater([this] { tearDown(); });
}

}  // namespace psd
