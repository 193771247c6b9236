#pragma once

#include <memory>
#include <optional>

#include "schema/psd.capnp.h"
#include "server/pull/pull_service.h"
#include "server/push/device_ring.h"
#include "server/rpc/connection.h"

namespace psd {

/// The calls by which one peer pulls, over one connection: between Cap'n Proto's messages and a PullService.
/// Belongs to the connection's loop.
class PullCalls final : private IdleKeeper {
 public:
  using Context = capnp::CallContext<schema::Reader::PullParams, schema::PullResult>;
  using DeviceContext = capnp::CallContext<schema::Trainer::PullToDeviceParams, schema::DevicePullResult>;

  /// See PullService::PullService().
  PullCalls(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
            std::optional<TrainerRef> trainer, std::shared_ptr<SessionCounters> counters,
            const Codec* codec = nullptr);
  ~PullCalls() override;
  PullCalls(const PullCalls&) = delete;
  PullCalls& operator=(const PullCalls&) = delete;

  kj::Promise<void> pull(Context context);
  /// A pull into the trainer's ring of the shard's device.
  kj::Promise<void> pullTo(const std::shared_ptr<DeviceRing>& ring, DeviceContext context);

 private:
  void letGoOfIdle(kj::TimePoint since) override { service_.letGoOfIdle(since); }
  template <class Call>
  kj::Promise<void> refuse(Call call, const Error& error);
  /// Whether a slice may be pulled, and its answer queued for this peer.
  Status mayPull(const PullRequest& request) const;
  /// Puts the slice into the call's answer, and keeps its bytes until they are written.
  void answer(Context& context, const PullRequest& request, PulledSlice slice);

  const std::shared_ptr<Connection> connection_;
  PullService service_;
};

}  // namespace psd
