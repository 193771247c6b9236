#pragma once

#include <memory>

#include "schema/psd.capnp.h"
#include "server/pull/pull_service.h"
#include "server/push/device_ring.h"
#include "server/push/shared_ring.h"
#include "server/rpc/connection.h"

namespace psd {

/// The calls by which one peer pulls, over one connection: between Cap'n Proto's messages and a PullService.
/// Belongs to the connection's loop.
class PullCalls final : private IdleKeeper {
 public:
  using Context = capnp::CallContext<schema::Reader::PullParams, schema::PullResult>;
  using RowsContext = capnp::CallContext<schema::Reader::PullRowsParams, schema::RowsResult>;
  using SharedRowsContext =
      capnp::CallContext<schema::Trainer::PullRowsSharedParams, schema::SharedRowsResult>;
  using DeviceContext = capnp::CallContext<schema::Trainer::PullToDeviceParams, schema::DevicePullResult>;

  /// `service` outlives it.
  PullCalls(std::shared_ptr<Connection> connection, PullService& service);
  ~PullCalls() override;
  PullCalls(const PullCalls&) = delete;
  PullCalls& operator=(const PullCalls&) = delete;

  kj::Promise<void> pull(Context context);
  kj::Promise<void> pullRows(RowsContext context);
  /// A pull of rows into the trainer's ring.
  kj::Promise<void> pullRowsTo(const SharedRing& ring, SharedRowsContext context);
  /// A pull into the trainer's ring of the shard's device.
  kj::Promise<void> pullTo(const std::shared_ptr<DeviceRing>& ring, DeviceContext context);

 private:
  void letGoOfIdle(kj::TimePoint since) override { service_.letGoOfIdle(since); }
  template <class Call>
  kj::Promise<void> refuse(Call call, const Error& error);
  /// Calls `go(request)` once the policy need not let the rows wait for other trainers.
  template <class Call, class Go>
  kj::Promise<void> onceReadable(Call context, RowPullRequest request, Go go);
  /// Calls `go(request)`, which answers with a copy of `bytes`, once all connections together have room for
  /// it (limits.all_outgoing_bytes).
  template <class Go>
  kj::Promise<void> onceThereIsRoom(RowsContext context, RowPullRequest request, uint64_t bytes, Go go);
  /// Whether what service_.check() answered `checked` may be pulled, and its answer queued for this peer.
  Status mayPull(const Status& checked) const;
  /// pull() of differences.
  kj::Promise<void> pullDelta(Context context, const PullRequest& request, const HeldValues& held);
  /// Puts the slice into the call's answer, and keeps its bytes until they are written. Gives where more may
  /// be said of it.
  schema::PullResult::Slice::Builder answer(Context& context, const PullRequest& request, PulledSlice slice);

  const std::shared_ptr<Connection> connection_;
  PullService& service_;
};

}  // namespace psd
