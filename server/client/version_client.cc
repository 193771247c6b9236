#include "server/client/version_client.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/patch/version_patch.h"
#include "common/text/text.h"
#include "common/wire/published_version.h"
#include "server/client/conversation.h"
#include "server/client/move_watch.h"
#include "server/loop/background.h"

namespace psd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSliceBytes = 1 << 20;
constexpr size_t kSlicesUnderWay = 4;
constexpr uint64_t kVersionBytesMax = 1ull << 40;
constexpr std::chrono::seconds kLease{60}, kRenewAfter{20};
// A daemon that does not answer for that long is lost; a slice may travel over a slow link.
constexpr auto kPingEvery = 5 * kj::SECONDS, kCheckEvery = 1 * kj::SECONDS, kAnswerTimeout = 10 * kj::SECONDS,
               kSliceTimeout = 60 * kj::SECONDS;

/// After work that has held up the loop: lets it read what has arrived before it sends more, since a timer
/// that fires makes the loop poll its sockets. A daemon that ends says where its model is before it closes
/// the connection, and a failed write would discard that.
kj::Promise<void> afterWork(kj::Timer& timer) {
  return timer.afterDelay(1 * kj::MILLISECONDS).then([] { return kj::evalLast([] {}); });
}

kj::Promise<void> ping(schema::Reading::Client& reading, kj::Timer& timer) {
  return timer.timeoutAfter(kAnswerTimeout, reading.pingRequest().send().ignoreResult());
}

/// Fails once the daemon does not answer, and does not resolve.
kj::Promise<Result<VersionInfo>> untilSilent(schema::Reading::Client& reading, kj::Timer& timer) {
  return timer.afterDelay(kPingEvery)
      .then([&reading, &timer] { return ping(reading, timer); })
      .then([&reading, &timer] { return untilSilent(reading, timer); });
}

/// Pulls one version after another under a lease of its own. Belongs to one event loop.
class VersionPull {
 public:
  /// `base` outlives it, and has the version that was pulled last. `lease`: the id of its lease; 0: any.
  VersionPull(schema::Reading::Client reading, kj::Timer& timer, PatchBase& base, uint64_t lease = 0)
      : reading_(kj::mv(reading)), timer_(timer), lease_(lease != 0 ? lease : drawId()), base_(base) {}

  /// Leases the version, and resolves with what the daemon says of it. A daemon whose model is about to move
  /// answers once that is over, whenever that is.
  kj::Promise<Result<VersionInfo>> lease(uint64_t number) {
    auto request = reading_.leaseVersionRequest();
    request.setLease(lease_);
    request.setNumber(number);
    request.setSeconds(static_cast<uint32_t>(kLease.count()));
    leasedAt_ = Clock::now();
    return request.send().dropPipeline().then(
        [](capnp::Response<schema::VersionResult> answer) { return wire::readVersion(answer); });
  }
  /// Reads the file of the version that lease() has resolved with, and ends the lease. bytes() has the file.
  /// `admit`: checks it before; may be null.
  kj::Promise<Result<VersionInfo>> pull(const Result<VersionInfo>& leased,
                                        const std::function<Status(const VersionInfo&)>& admit = nullptr) {
    if (!leased.ok()) return leased;
    if (const Status may = admit ? admit(*leased) : Status(); !may.ok()) {
      return endLease().then([may] { return Result<VersionInfo>(may.error()); });
    }
    patchFault_.clear();
    patched_ = false;
    return patch(*leased).then([this, version = *leased](bool patched) -> kj::Promise<Result<VersionInfo>> {
      if (!patched) return pullWhole(version);
      return afterWork(timer_).then([this] { return endLease(); }).then([version] {
        return Result<VersionInfo>(version);
      });
    });
  }
  std::span<const std::byte> bytes() const { return base_.bytes; }
  /// The patch that made the bytes in the last pull(); empty: they were read whole, or were there.
  std::span<const std::byte> appliedPatch() const {
    return patched_ ? std::span<const std::byte>(patch_) : std::span<const std::byte>();
  }
  /// The bytes are no base of patches.
  void forget() { base_.sums.clear(); }
  /// Why a patch was not used in the last pull(); empty: there was no fault.
  const std::string& patchFault() const { return patchFault_; }

 private:
  kj::Promise<Result<VersionInfo>> pullWhole(const VersionInfo& version) {
    outcome_ = begin(version);
    auto lines = kj::heapArrayBuilder<kj::Promise<void>>(kSlicesUnderWay);
    for (size_t i = 0; i < kSlicesUnderWay; i++) lines.add(readOn());
    return kj::joinPromises(lines.finish())
        .then([this] { return endLease(); })
        .then([this]() -> Result<VersionInfo> {
          PSD_RETURN_IF_ERROR(outcome_);
          PSD_RETURN_IF_ERROR(verify());
          return base_.info;
        });
  }

  /// Verifies the bytes, and computes their sums for later patches.
  Status verify() {
    const VersionInfo& info = base_.info;
    const auto verified = verifyVersion(base_.bytes, info.number, info.history);
    if (!verified.ok()) {
      return {verified.error().code,
              fmt::format("version {} is damaged: {}", info.number, verified.message())};
    }
    if (verified->info.step != info.step) {
      return {ErrorCode::io, fmt::format("version {} is damaged: it says that it is of step {}, and the "
                                         "daemon says {}",
                                         info.number, verified->info.step, info.step)};
    }
    PSD_ASSIGN_OR_RETURN(base_.sums, contentSums(base_.bytes));
    return {};
  }

  /// Makes the bytes those of the version by a patch; false: there is none, or it does not apply.
  kj::Promise<bool> patch(const VersionInfo& to) {
    const VersionInfo& from = base_.info;
    if (base_.sums.empty() || from.history != to.history || from.bytes != to.bytes) return false;
    if (from.number == to.number) return true;  // it was pulled, and then not taken
    if (from.number > to.number) return false;
    auto request = reading_.patchRequest();
    request.setHistory(to.history);
    request.setFrom(from.number);
    request.setTo(to.number);
    return timer_.timeoutAfter(kSliceTimeout, request.send().dropPipeline())
        .then(
            [this, to](capnp::Response<schema::PatchResult> answer) -> kj::Promise<bool> {
              if (answer.isError() || answer.getBytes() == 0 || answer.getBytes() > to.bytes) return false;
              patch_.resize(answer.getBytes());
              return readPatch(to.number, 0).then([this, to](bool read) { return read && apply(to); });
            },
            [](kj::Exception&& exception) {
              // An earlier daemon has no patches.
              if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) return false;
              kj::throwFatalException(kj::mv(exception));
            });
  }

  /// Reads the bytes of the patch from `at` on; false: they are gone.
  kj::Promise<bool> readPatch(uint64_t to, uint64_t at) {
    if (at == patch_.size()) return true;
    auto request = reading_.readPatchRequest();
    request.setHistory(base_.info.history);
    request.setFrom(base_.info.number);
    request.setTo(to);
    request.setOffset(at);
    request.setCount(static_cast<uint32_t>(std::min<uint64_t>(kSliceBytes, patch_.size() - at)));
    renewLease(to);
    return timer_.timeoutAfter(kSliceTimeout, request.send().dropPipeline())
        .then([this, to, at](capnp::Response<schema::VersionBytesResult> answer) -> kj::Promise<bool> {
          if (answer.isError()) return false;
          const auto bytes = wire::bytesIn(answer.getBytes());
          if (bytes.empty() || bytes.size() > patch_.size() - at) return false;
          std::memcpy(patch_.data() + at, bytes.data(), bytes.size());
          return readPatch(to, at + bytes.size());
        });
  }

  bool apply(const VersionInfo& to) {
    const auto patch = VersionPatch::read(patch_);
    const bool leads = patch.ok() && patch->header().info.number == to.number &&
                       patch->header().info.history == to.history && patch->header().info.step == to.step;
    std::vector<ContentSum> sums = std::exchange(base_.sums, {});
    if (!leads) {
      patchFault_ = patch.ok() ? "the patch leads to another version" : patch.message();
      return false;
    }
    const auto differ = patch->apply(base_.bytes, sums);
    if (!differ.ok()) patchFault_ = differ.message();
    if (differ.ok() && !differ->empty()) {
      patchFault_ = fmt::format("tensor '{}' differs from its sum", printable(differ->front()));
    }
    if (!patchFault_.empty()) return false;
    base_.sums = std::move(sums);
    base_.info = to;
    patched_ = true;
    return true;
  }

  Status begin(const VersionInfo& info) {
    base_.info = info;
    base_.sums.clear();
    if (info.bytes < base_.bytes.capacity() / 2) {  // the memory of a larger model
      std::exchange(base_.bytes, {});               // an assignment of {} would keep it
      std::exchange(patch_, {});
    }
    base_.bytes.clear();
    at_ = 0;
    if (info.bytes > kVersionBytesMax) {
      return {ErrorCode::protocolMismatch,
              fmt::format("the daemon reports a version of {} bytes", info.bytes)};
    }
    try {
      base_.bytes.resize(info.bytes);
    } catch (const std::bad_alloc&) {
      return {ErrorCode::overloaded,
              fmt::format("out of memory: cannot allocate {} bytes for version {}", info.bytes, info.number)};
    }
    return {};
  }

  kj::Promise<void> readOn() {
    if (!outcome_.ok() || at_ == base_.bytes.size()) return kj::READY_NOW;
    const uint64_t count = std::min<uint64_t>(kSliceBytes, base_.bytes.size() - at_);
    const std::span<std::byte> into = std::span(base_.bytes).subspan(at_, count);
    at_ += count;
    return read(into).then([this] { return readOn(); });
  }

  /// Fills `into`, with several answers where the daemon's slices are smaller.
  kj::Promise<void> read(std::span<std::byte> into) {
    auto request = reading_.readVersionRequest();
    request.setNumber(base_.info.number);
    request.setOffset(static_cast<uint64_t>(into.data() - base_.bytes.data()));
    request.setCount(static_cast<uint32_t>(into.size()));
    renewLease(base_.info.number);
    return timer_.timeoutAfter(kSliceTimeout, request.send().dropPipeline())
        .then([this, into](capnp::Response<schema::VersionBytesResult> answer) -> kj::Promise<void> {
          if (answer.isError()) {
            if (outcome_.ok()) outcome_ = wire::readError(answer.getError());
            return kj::READY_NOW;
          }
          const auto bytes = wire::bytesIn(answer.getBytes());
          if (bytes.empty() || bytes.size() > into.size()) {
            outcome_ = {ErrorCode::protocolMismatch, "a slice of a version has the wrong length"};
            return kj::READY_NOW;
          }
          std::memcpy(into.data(), bytes.data(), bytes.size());
          if (bytes.size() == into.size()) return kj::READY_NOW;
          return read(into.subspan(bytes.size()));
        });
  }

  void renewLease(uint64_t number) {
    if (Clock::now() - leasedAt_ < kRenewAfter) return;
    renewal_ = timer_.timeoutAfter(kAnswerTimeout, lease(number))
                   .ignoreResult()
                   .eagerlyEvaluate([](kj::Exception&&) {});
  }

  kj::Promise<void> endLease() {
    kj::Promise<void> renewal = kj::mv(renewal_);  // which must not overtake the release
    renewal_ = kj::READY_NOW;
    return renewal.then([this] {
      auto request = reading_.releaseVersionRequest();
      request.setLease(lease_);
      return timer_.timeoutAfter(kAnswerTimeout, request.send().ignoreResult());
    });
  }

  schema::Reading::Client reading_;
  kj::Timer& timer_;
  const uint64_t lease_;
  Clock::time_point leasedAt_;
  PatchBase& base_;
  std::vector<std::byte> patch_;
  bool patched_ = false;  // `patch_` made the bytes of the base
  std::string patchFault_;
  uint64_t at_ = 0;
  Status outcome_;
  kj::Promise<void> renewal_ = kj::READY_NOW;
};

/// The loop of followVersions(). Belongs to one event loop.
class VersionFollow {
 public:
  VersionFollow(schema::Reading::Client reading, kj::Timer& timer, VersionInfo& known, PatchBase& base,
                const FollowTerms& terms)
      : reading_(reading), timer_(timer), pull_(kj::mv(reading), timer, base), known_(known), terms_(terms) {}

  kj::Promise<Result<bool>> run() {
    watchMove();
    return follow().then([this](Result<bool> ended) {
      return movedTo_.empty() || ended.ok() ? ended : Result<bool>(movedError(movedTo_));
    });
  }

 private:
  kj::Promise<Result<bool>> follow() {
    auto checked = terms_.check ? check() : kj::Promise<Status>(Status());
    return checked.then([this](Status fit) -> kj::Promise<Result<bool>> {
      if (!fit.ok()) return Result<bool>(fit.error());
      return published().then([this](Result<VersionInfo> version) { return takeNewer(version); });
    });
  }
  /// Learns where the model moves to.
  void watchMove() {
    moved_ = reading_.movedRequest()
                 .send()
                 .then([this](capnp::Response<schema::Reading::MovedResults> answer) -> kj::Promise<void> {
                   auto to = wire::readDaemonAddresses("the daemon", answer.getTo());
                   if (!to.ok() || to->empty()) return kj::NEVER_DONE;
                   movedTo_ = *std::move(to);
                   if (terms_.moved) terms_.moved(movedTo_);
                   return kj::READY_NOW;
                 })
                 // An earlier daemon has no such call; a broken connection shows in the others.
                 .catch_([](kj::Exception&&) -> kj::Promise<void> { return kj::NEVER_DONE; })
                 .fork();
  }
  /// The newest version once its number is `wanted_`, or an error of watch().
  kj::Promise<Result<VersionInfo>> published() {
    auto request = reading_.publishedRequest();
    request.setNumber(wanted_);
    return watched(request.send().then(
        [](capnp::Response<schema::VersionResult> answer) { return wire::readVersion(answer); }));
  }
  /// The daemon's answer, or an error of watch() or of the model's move.
  kj::Promise<Result<VersionInfo>> watched(kj::Promise<Result<VersionInfo>> answer) {
    return answer.exclusiveJoin(watch().then([](Status why) { return Result<VersionInfo>(why.error()); }))
        .exclusiveJoin(moved_.addBranch().then([this] { return Result<VersionInfo>(movedError(movedTo_)); }));
  }
  kj::Promise<Result<bool>> takeNewer(const Result<VersionInfo>& version) {
    if (!version.ok()) return Result<bool>(version.error());
    if (version->history != known_.history || version->number > known_.number) return pullAndTake();
    if (terms_.upToDate && !terms_.upToDate()) return Result<bool>(false);
    wanted_ = known_.number + 1;
    return follow();
  }
  /// Resolves with an error, or fails once the daemon does not answer.
  kj::Promise<Status> watch() {
    return timer_.afterDelay(terms_.check ? kCheckEvery : kPingEvery)
        .then([this] { return check(); })
        .then([this](Status checked) -> kj::Promise<Status> {
          if (!checked.ok()) return checked;
          return watch();
        });
  }
  kj::Promise<Status> check() {
    if (!terms_.check) {
      return ping(reading_, timer_).then([] { return Status(); });
    }
    return timer_.timeoutAfter(kAnswerTimeout, reading_.freshnessRequest().send().dropPipeline())
        .then([this, asked = Clock::now()](capnp::Response<schema::FreshnessResult> answer) -> Status {
          PSD_ASSIGN_OR_RETURN(const VersionFreshness freshness, wire::readFreshness(answer));
          return terms_.check(freshness, asked);
        });
  }
  kj::Promise<Result<bool>> pullAndTake() {
    auto pull = watched(pull_.lease(0)).then([this](const Result<VersionInfo>& leased) {
      return pull_.pull(leased, terms_.admit);
    });
    return pull.then([this](Result<VersionInfo> pulled) -> kj::Promise<Result<bool>> {
      if (!pulled.ok()) return Result<bool>(pulled.error());
      // The loop continues meanwhile: a daemon that ends says where its model is, and closes the connection.
      return background_
          .tryRun<Result<bool>>([this, info = *pulled] {
            return terms_.take({info, pull_.bytes(), pull_.patchFault(), pull_.appliedPatch()});
          })
          .then([this, info = *pulled](const Result<bool>& more) { return taken(info, more); });
    });
  }
  kj::Promise<Result<bool>> taken(const VersionInfo& version, const Result<bool>& more) {
    // Bytes that are not those of the version are not taken again.
    if (!more.ok() && more.error().code == ErrorCode::io) pull_.forget();
    if (!more.ok() || !*more) return more;
    known_ = version;
    wanted_ = known_.number + 1;
    return follow();
  }

  schema::Reading::Client reading_;
  kj::Timer& timer_;
  VersionPull pull_;
  VersionInfo& known_;
  const FollowTerms& terms_;
  uint64_t wanted_ = 1;  // first: whatever exists, of which history it may be
  DaemonAddresses movedTo_;
  Background background_;
  kj::ForkedPromise<void> moved_ = nullptr;  // last: it uses the above
};

}  // namespace

Status pullVersion(const Address& address, uint64_t number, std::chrono::milliseconds timeout,
                   const Credentials& credentials, const std::function<Status(const PulledVersion&)>& take,
                   uint64_t lease, Patience patience) {
  PatchBase base;
  return withLogin<bool>(
             address, credentials, timeout, "",
             [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&,
                 kj::Timer& timer) -> kj::Promise<Result<bool>> {
               if (!login.hasReading()) {
                 return Result<bool>(wire::forbiddenError(address.toString(), "reader", login));
               }
               const auto moved = movedAway(address, login);
               if (!moved.ok()) return Result<bool>(moved.error());
               if (*moved) return Result<bool>(movedError(**moved));
               auto reading = kj::heap<schema::Reading::Client>(login.getReading());
               auto pull = kj::heap<VersionPull>(*reading, timer, base, lease);
               VersionPull& pulling = *pull;
               return pulling.lease(number)
                   .exclusiveJoin(untilSilent(*reading, timer))
                   .then([&pulling](const Result<VersionInfo>& leased) { return pulling.pull(leased); })
                   .then([&take, &pulling](Result<VersionInfo> pulled) -> Result<bool> {
                     if (!pulled.ok()) return pulled.error();
                     PSD_RETURN_IF_ERROR(
                         take({*pulled, pulling.bytes(), pulling.patchFault(), pulling.appliedPatch()}));
                     return true;
                   })
                   .attach(kj::mv(pull), kj::mv(reading));
             },
             patience)
      .status();
}

Status followVersions(const Address& address, const Credentials& credentials, VersionInfo& known,
                      PatchBase& base, const FollowTerms& terms) {
  const auto talk = [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&,
                        kj::Timer& timer) -> kj::Promise<Result<bool>> {
    if (!login.hasReading()) {
      return Result<bool>(wire::forbiddenError(address.toString(), "reader", login));
    }
    const auto moved = movedAway(address, login);
    if (!moved.ok()) return Result<bool>(moved.error());
    if (*moved) {
      if (terms.moved) terms.moved(**moved);
      return Result<bool>(movedError(**moved));
    }
    auto follow = kj::heap<VersionFollow>(login.getReading(), timer, known, base, terms);
    VersionFollow& following = *follow;
    auto run = following.run()
                   .catch_([](kj::Exception&& exception) -> Result<bool> {
                     if (exception.getType() != kj::Exception::Type::OVERLOADED) {
                       kj::throwFatalException(kj::mv(exception));
                     }
                     return Error{ErrorCode::deadlineExceeded, "the daemon does not answer"};
                   })
                   .attach(kj::mv(follow));
    if (terms.stop == nullptr) return kj::mv(run);
    auto stop = kj::heap<wire::StopSignal::InLoop>(*terms.stop, timer);
    auto stoppable = stop->orStopped(kj::mv(run));
    return stoppable.attach(kj::mv(stop));
  };
  return withLogin<bool>(address, credentials, terms.timeout, "", talk, Patience::endless).status();
}

}  // namespace psd
