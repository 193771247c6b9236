#pragma once

#include <memory>

#include "schema/psd.capnp.h"
#include "server/pull/pull_service.h"
#include "server/pull/state_pulls.h"
#include "server/push/device_ring.h"
#include "server/push/shared_ring.h"
#include "server/rpc/connection.h"

namespace psd {

/// The pull calls of one peer over one connection: translates between Cap'n Proto messages and a PullService.
/// Belongs to the connection's loop.
class PullCalls final : private IdleCache {
 public:
  using Context = capnp::CallContext<schema::Reader::PullParams, schema::PullResult>;
  using RowsContext = capnp::CallContext<schema::Reader::PullRowsParams, schema::RowsResult>;
  using BuffersContext = capnp::CallContext<schema::Reader::BuffersParams, schema::BuffersResult>;
  using SharedRowsContext =
      capnp::CallContext<schema::Trainer::PullRowsSharedParams, schema::SharedRowsResult>;
  using DeviceContext = capnp::CallContext<schema::Trainer::PullToDeviceParams, schema::DevicePullResult>;

  using StateContext = capnp::CallContext<schema::Trainer::PullStateParams, schema::StateResult>;

  /// `service` and `states` outlive it; without `states` pullState() must not be called.
  PullCalls(std::shared_ptr<Connection> connection, PullService& service, StatePulls* states = nullptr);
  ~PullCalls() override;
  PullCalls(const PullCalls&) = delete;
  PullCalls& operator=(const PullCalls&) = delete;

  kj::Promise<void> pull(Context context);
  kj::Promise<void> pullRows(RowsContext context);
  kj::Promise<void> buffers(BuffersContext context);
  /// Pulls rows into the trainer's ring.
  kj::Promise<void> pullRowsTo(const SharedRing& ring, SharedRowsContext context);
  /// Pulls into the trainer's ring on the shard's device.
  kj::Promise<void> pullTo(const std::shared_ptr<DeviceRing>& ring, DeviceContext context);
  kj::Promise<void> pullState(StateContext context);

 private:
  void dropIdle(kj::TimePoint since) override {
    service_.dropIdle(since);
    if (states_) states_->dropIdle(since);
  }
  template <class Call>
  kj::Promise<void> refuse(Call call, const Error& error);
  /// Calls `go(request)` once the policy no longer makes the rows wait for other trainers.
  template <class Call, class Go>
  kj::Promise<void> onceReadable(Call context, RowPullRequest request, Go go);
  /// Calls `go(request)`, which answers with a copy of `bytes`, once the budget of all connections has space
  /// for it (limits.all_outgoing_bytes).
  template <class Go>
  kj::Promise<void> onceReserved(RowsContext context, RowPullRequest request, uint64_t bytes, Go go);
  /// `checked`, the result of service_.check(), or ErrorCode::overloaded if no answer may be queued for this
  /// peer.
  Status mayPull(const Status& checked) const;
  /// pull() of differences.
  kj::Promise<void> pullDelta(Context context, const PullRequest& request, const HeldValues& held);
  /// Puts the slice into the call's answer and keeps its bytes alive until they are written. Returns the
  /// builder for further fields.
  schema::PullResult::Slice::Builder answer(Context& context, const PullRequest& request, PulledSlice slice);

  const std::shared_ptr<Connection> connection_;
  PullService& service_;
  StatePulls* const states_;
};

}  // namespace psd
