#pragma once

#include <functional>
#include <vector>

#include "schema/psd.capnp.h"
#include "server/pull/slice_encoder.h"
#include "server/rpc/counted_service.h"
#include "server/service/administration.h"
#include "server/service/join_service.h"

namespace psd {

/// Calls to read the model and to monitor the daemon. Belongs to the connection's loop.
class ReadingService final : public CountedService<schema::Reading> {
 public:
  /// `control` and `administration` outlive it.
  ReadingService(std::shared_ptr<Connection> connection, ControlLoop& control, Administration& administration)
      : CountedService(std::move(connection), true),
        joins_(connection_->loop().shared_from_this(), control),
        administration_(administration) {}

 protected:
  kj::Promise<void> observe(ObserveContext context) override;
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }
  kj::Promise<void> status(StatusContext context) override;
  kj::Promise<void> hotRows(HotRowsContext context) override;
  kj::Promise<void> takeover(TakeoverContext context) override;
  kj::Promise<void> waiters(WaitersContext context) override;
  kj::Promise<void> moved(MovedContext context) override;
  kj::Promise<void> versions(VersionsContext context) override;
  kj::Promise<void> patch(PatchContext context) override;
  kj::Promise<void> readPatch(ReadPatchContext context) override;
  kj::Promise<void> freshness(FreshnessContext context) override;
  kj::Promise<void> published(PublishedContext context) override;
  kj::Promise<void> leaseVersion(LeaseVersionContext context) override;
  kj::Promise<void> releaseVersion(ReleaseVersionContext context) override;
  kj::Promise<void> readVersion(ReadVersionContext context) override;

 private:
  using VersionBytes = Result<std::vector<std::byte>>;
  /// Answers with the bytes that `read(versions, count)` returns on another thread: `wanted`, or
  /// limits.slice_bytes if that is fewer, and 7 more (wire::referenceBytes()).
  template <class Context>
  kj::Promise<void> answerBytes(Context context, uint32_t wanted,
                                std::function<VersionBytes(VersionStore&, uint64_t count)> read);

  using Lease = std::function<Result<VersionInfo>()>;
  /// Runs `lease` on another thread once the versions are not frozen: of a model that is about to move, a
  /// version that is leased might not be kept at the other daemon.
  kj::Promise<Result<VersionInfo>> leaseThawed(VersionStore& versions, Lease lease);

  JoinService joins_;
  const SliceEncoder
      encoder_;  // of all readers of this connection, so that more of them keep no more idle buffers
  Administration& administration_;
  bool waitsForStatus_ = false;    // a status() or waiters() call is in progress
  bool waitsForTakeover_ = false;  // a takeover() call is waiting
  bool waitsForMove_ = false;      // a moved() call is waiting
  bool waitsForVersion_ = false;   // a published() call is waiting
};

}  // namespace psd
