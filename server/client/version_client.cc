#include "server/client/version_client.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/patch/version_patch.h"
#include "common/text/text.h"
#include "common/wire/published_version.h"
#include "server/client/conversation.h"

namespace psd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSliceBytes = 1 << 20;
constexpr size_t kSlicesUnderWay = 4;
constexpr uint64_t kVersionBytesMax = 1ull << 40;
constexpr std::chrono::seconds kLease{60}, kRenewAfter{20};
// A daemon that does not answer for that long is lost; a slice may travel over a slow link.
constexpr auto kPingEvery = 5 * kj::SECONDS, kAnswerTimeout = 10 * kj::SECONDS,
               kSliceTimeout = 60 * kj::SECONDS;

/// Pulls one version after another under a lease of its own. Belongs to one event loop.
class VersionPull {
 public:
  VersionPull(schema::Reading::Client reading, kj::Timer& timer) : reading_(kj::mv(reading)), timer_(timer) {}

  /// Leases the version and reads its file; resolves with what the daemon says of it. bytes() has the file.
  kj::Promise<Result<VersionInfo>> pull(uint64_t number) {
    return lease(number).then([this](Result<VersionInfo> leased) -> kj::Promise<Result<VersionInfo>> {
      if (!leased.ok()) return leased;
      patchFault_.clear();
      return patch(*leased).then([this, version = *leased](bool patched) -> kj::Promise<Result<VersionInfo>> {
        if (!patched) return pullWhole(version);
        return release().then([version] { return Result<VersionInfo>(version); });
      });
    });
  }
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Why a patch was not used in the last pull(); empty: there was no fault.
  const std::string& patchFault() const { return patchFault_; }

 private:
  kj::Promise<Result<VersionInfo>> pullWhole(const VersionInfo& version) {
    isVerified_ = false;
    outcome_ = begin(version);
    auto lines = kj::heapArrayBuilder<kj::Promise<void>>(kSlicesUnderWay);
    for (size_t i = 0; i < kSlicesUnderWay; i++) lines.add(readOn());
    return kj::joinPromises(lines.finish())
        .then([this] {
          kj::Promise<void> renewal = kj::mv(renewal_);  // which must not overtake the release
          renewal_ = kj::READY_NOW;
          return renewal;
        })
        .then([this] { return release(); })
        .then([this]() -> Result<VersionInfo> {
          PSD_RETURN_IF_ERROR(outcome_);
          PSD_RETURN_IF_ERROR(verify());
          isVerified_ = true;
          return info_;
        });
  }

  /// Verifies the bytes, and computes their sums for later patches.
  Status verify() {
    const auto verified = verifyVersion(bytes_, info_.number, info_.history);
    if (!verified.ok()) {
      return {verified.error().code,
              fmt::format("version {} is damaged: {}", info_.number, verified.message())};
    }
    if (verified->info.step != info_.step) {
      return {ErrorCode::io, fmt::format("version {} is damaged: it says that it is of step {}, and the "
                                         "daemon says {}",
                                         info_.number, verified->info.step, info_.step)};
    }
    PSD_ASSIGN_OR_RETURN(sums_, contentSums(bytes_));
    return {};
  }

  /// Makes the bytes those of the version by a patch; false: there is none, or it does not apply.
  kj::Promise<bool> patch(const VersionInfo& to) {
    if (!isVerified_ || info_.history != to.history || info_.number >= to.number || info_.bytes != to.bytes) {
      return false;
    }
    auto request = reading_.patchRequest();
    request.setHistory(to.history);
    request.setFrom(info_.number);
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
    request.setHistory(info_.history);
    request.setFrom(info_.number);
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
    isVerified_ = false;
    if (!leads) {
      patchFault_ = patch.ok() ? "the patch leads to another version" : patch.message();
      return false;
    }
    const auto differ = patch->apply(bytes_, sums_);
    if (!differ.ok()) patchFault_ = differ.message();
    if (differ.ok() && !differ->empty()) {
      patchFault_ = fmt::format("tensor '{}' differs from its sum", printable(differ->front()));
    }
    isVerified_ = patchFault_.empty();
    if (isVerified_) info_ = to;
    return isVerified_;
  }

  kj::Promise<Result<VersionInfo>> lease(uint64_t number) {
    auto request = reading_.leaseVersionRequest();
    request.setLease(lease_);
    request.setNumber(number);
    request.setSeconds(static_cast<uint32_t>(kLease.count()));
    leasedAt_ = Clock::now();
    return timer_.timeoutAfter(kAnswerTimeout, request.send().dropPipeline())
        .then([](capnp::Response<schema::VersionResult> answer) { return wire::readVersion(answer); });
  }

  Status begin(const VersionInfo& info) {
    info_ = info;
    at_ = 0;
    bytes_.clear();
    if (info.bytes > kVersionBytesMax) {
      return {ErrorCode::protocolMismatch,
              fmt::format("the daemon reports a version of {} bytes", info.bytes)};
    }
    try {
      bytes_.resize(info.bytes);
    } catch (const std::bad_alloc&) {
      return {ErrorCode::overloaded,
              fmt::format("out of memory: cannot allocate {} bytes for version {}", info.bytes, info.number)};
    }
    return {};
  }

  kj::Promise<void> readOn() {
    if (!outcome_.ok() || at_ == bytes_.size()) return kj::READY_NOW;
    const uint64_t count = std::min<uint64_t>(kSliceBytes, bytes_.size() - at_);
    const std::span<std::byte> into = std::span(bytes_).subspan(at_, count);
    at_ += count;
    return read(into).then([this] { return readOn(); });
  }

  /// Fills `into`, with several answers where the daemon's slices are smaller.
  kj::Promise<void> read(std::span<std::byte> into) {
    auto request = reading_.readVersionRequest();
    request.setNumber(info_.number);
    request.setOffset(static_cast<uint64_t>(into.data() - bytes_.data()));
    request.setCount(static_cast<uint32_t>(into.size()));
    renewLease(info_.number);
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
    renewal_ = lease(number).ignoreResult().eagerlyEvaluate([](kj::Exception&&) {});
  }

  kj::Promise<void> release() {
    auto request = reading_.releaseVersionRequest();
    request.setLease(lease_);
    return timer_.timeoutAfter(kAnswerTimeout, request.send().ignoreResult());
  }

  schema::Reading::Client reading_;
  kj::Timer& timer_;
  const uint64_t lease_ = drawId();
  Clock::time_point leasedAt_;
  VersionInfo info_;
  std::vector<std::byte> bytes_;
  std::vector<ContentSum> sums_;  // of bytes_
  bool isVerified_ = false;       // bytes_ are the version info_
  std::vector<std::byte> patch_;
  std::string patchFault_;
  uint64_t at_ = 0;
  Status outcome_;
  kj::Promise<void> renewal_ = kj::READY_NOW;
};

/// The loop of followVersions(). Belongs to one event loop.
class VersionFollow {
 public:
  VersionFollow(schema::Reading::Client reading, kj::Timer& timer, VersionInfo& known, bool waits,
                const std::function<Result<bool>(const PulledVersion&)>& take)
      : reading_(reading),
        timer_(timer),
        pull_(kj::mv(reading), timer),
        known_(known),
        waits_(waits),
        take_(take) {}

  kj::Promise<Result<bool>> run() {
    auto request = reading_.publishedRequest();
    request.setNumber(wanted_);
    auto published = request.send().dropPipeline().exclusiveJoin(
        pings().then([]() -> capnp::Response<schema::VersionResult> { KJ_UNREACHABLE; }));
    return published.then([this](capnp::Response<schema::VersionResult> answer) -> kj::Promise<Result<bool>> {
      const auto version = wire::readVersion(answer);
      if (!version.ok()) return Result<bool>(version.error());
      if (version->history == known_.history && version->number <= known_.number) {
        wanted_ = known_.number + 1;
        return run();
      }
      return pullAndTake();
    });
  }

 private:
  /// Fails once the daemon does not answer.
  kj::Promise<void> pings() {
    return timer_.afterDelay(kPingEvery)
        .then([this] {
          return timer_.timeoutAfter(kAnswerTimeout, reading_.pingRequest().send().ignoreResult());
        })
        .then([this] { return pings(); });
  }
  kj::Promise<Result<bool>> pullAndTake() {
    return pull_.pull(0).then([this](Result<VersionInfo> pulled) -> kj::Promise<Result<bool>> {
      if (!pulled.ok()) return Result<bool>(pulled.error());
      const Result<bool> more = take_({*pulled, pull_.bytes(), pull_.patchFault()});
      if (!more.ok() || !*more) return more;
      known_ = *pulled;
      wanted_ = known_.number + 1;
      return run();
    });
  }

  schema::Reading::Client reading_;
  kj::Timer& timer_;
  VersionPull pull_;
  VersionInfo& known_;
  const bool waits_;
  const std::function<Result<bool>(const PulledVersion&)>& take_;
  uint64_t wanted_ = 1;  // first: whatever exists, of which history it may be
};

}  // namespace

Status pullVersion(const Address& address, uint64_t number, std::chrono::milliseconds timeout,
                   const Credentials& credentials, const std::function<Status(const PulledVersion&)>& take) {
  return withLogin<bool>(address, credentials, timeout, "",
                         [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&,
                             kj::Timer& timer) -> kj::Promise<Result<bool>> {
                           if (!login.hasReading()) {
                             return Result<bool>(wire::forbiddenError(address.toString(), "reader", login));
                           }
                           auto pull = kj::heap<VersionPull>(login.getReading(), timer);
                           VersionPull& pulling = *pull;
                           return pulling.pull(number)
                               .then([&take, &pulling](Result<VersionInfo> pulled) -> Result<bool> {
                                 if (!pulled.ok()) return pulled.error();
                                 PSD_RETURN_IF_ERROR(take({*pulled, pulling.bytes(), pulling.patchFault()}));
                                 return true;
                               })
                               .attach(kj::mv(pull));
                         })
      .status();
}

Status followVersions(const Address& address, std::chrono::milliseconds timeout,
                      const Credentials& credentials, VersionInfo& known, bool waits,
                      const std::function<Result<bool>(const PulledVersion&)>& take) {
  return withLogin<bool>(
             address, credentials, timeout, "",
             [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&,
                 kj::Timer& timer) -> kj::Promise<Result<bool>> {
               if (!login.hasReading()) {
                 return Result<bool>(wire::forbiddenError(address.toString(), "reader", login));
               }
               auto follow = kj::heap<VersionFollow>(login.getReading(), timer, known, waits, take);
               VersionFollow& following = *follow;
               return following.run()
                   .catch_([](kj::Exception&& exception) -> Result<bool> {
                     if (exception.getType() != kj::Exception::Type::OVERLOADED) {
                       kj::throwFatalException(kj::mv(exception));
                     }
                     return Error{ErrorCode::deadlineExceeded, "the daemon does not answer"};
                   })
                   .attach(kj::mv(follow));
             },
             Patience::endless)
      .status();
}

}  // namespace psd
