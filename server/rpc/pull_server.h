#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "schema/psd.capnp.h"
#include "server/model/slice_encoder.h"
#include "server/policy/served_model.h"
#include "server/push/device_ring.h"
#include "server/rpc/connection.h"

namespace psd {

/// Answers the pulls of one peer, trainer or reader. Belongs to the connection's loop.
class PullServer final : private IdleKeeper {
 public:
  using Context = capnp::CallContext<schema::Reader::PullParams, schema::PullResult>;

  /// `trainer` and `counters` are empty for readers. `codec`: the one that pulls may ask for beside float32;
  /// null: none.
  PullServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
             std::optional<TrainerRef> trainer, std::shared_ptr<SessionCounters> counters,
             const Codec* codec = nullptr);
  ~PullServer() override;
  PullServer(const PullServer&) = delete;
  PullServer& operator=(const PullServer&) = delete;

  kj::Promise<void> pull(Context context);

  using DeviceContext = capnp::CallContext<schema::Trainer::PullToDeviceParams, schema::DevicePullResult>;
  /// The same into the trainer's ring of the shard's device.
  kj::Promise<void> pullTo(const std::shared_ptr<DeviceRing>& ring, DeviceContext context);

 private:
  /// A pull goes on under the policy that it began with.
  struct Reading : ShardPull {
    std::shared_ptr<UpdatePolicy> policy;
    kj::TimePoint asked = kj::origin<kj::TimePoint>();  ///< for a slice, or answered, the last time
    size_t unanswered = 0;                              ///< slices
    bool letGo = false;                                 ///< of its snapshot
  };

  /// A slice that the peer asked for.
  struct Asked {
    uint32_t shard;
    uint64_t offset, count;
    const Codec* codec;
  };

  /// Of copies whose pulls have not gone on: those are to begin anew.
  void letGoOfIdle(kj::TimePoint since) override;
  Status mayPull(const Asked& asked) const;
  template <class Call>
  kj::Promise<void> refuse(Call call, const Error& error);
  /// Shows that the trainer waits, until what it gives goes.
  std::shared_ptr<const void> countWait();
  /// A slice that was answered.
  void count(uint64_t bytes, uint64_t valueBytes);
  /// Puts values into the call's answer, and keeps them until it is written.
  Status answer(Context& context, const Asked& asked, uint64_t pull, const PullAnswer& answer);
  /// What goes into the message: the view's own memory, or what the codec made of it.
  Result<SliceEncoder::Encoded> bytesOf(const ReadView& view, const Codec* codec);
  std::shared_ptr<Reading> reading(uint32_t shard, uint64_t pull);
  /// A slice of it is asked for; what is returned goes with its answer.
  std::shared_ptr<const void> asking(uint32_t shard, const std::shared_ptr<Reading>& reading);

  const std::shared_ptr<Connection> connection_;
  EventLoop& loop_;  // the connection's; it keeps it alive
  std::shared_ptr<ServedModel> model_;
  const std::optional<TrainerRef> trainer_;
  std::shared_ptr<SessionCounters> counters_;
  const Codec* const codec_;
  SliceEncoder encoder_;
  std::vector<std::shared_ptr<Reading>> pulls_;  // per shard
  std::set<uint32_t> holding_;                   // shards whose pull holds a snapshot
};

}  // namespace psd
