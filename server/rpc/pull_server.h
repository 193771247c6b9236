#pragma once

#include <memory>
#include <vector>

#include "schema/psd.capnp.h"
#include "server/rpc/connection.h"
#include "server/rpc/served_model.h"

namespace psd {

/// Answers the pulls of one peer, trainer or reader. Belongs to the connection's loop.
class PullServer {
 public:
  using Context = capnp::CallContext<schema::Reader::PullParams, schema::PullResult>;

  /// `counters` may be null (readers).
  PullServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
             std::shared_ptr<SessionCounters> counters);

  kj::Promise<void> pull(Context context);

 private:
  std::shared_ptr<ShardPull> reading(uint32_t shard, uint64_t pull);

  const std::shared_ptr<Connection> connection_;
  EventLoop& loop_;  // the connection's; it keeps it alive
  std::shared_ptr<ServedModel> model_;
  std::shared_ptr<SessionCounters> counters_;
  std::vector<std::shared_ptr<ShardPull>> pulls_;  // per shard
};

}  // namespace psd
