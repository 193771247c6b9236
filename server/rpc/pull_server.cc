#include "server/rpc/pull_server.h"

#include "common/wire/convert.h"
#include "server/rpc/slice_checks.h"

namespace psd {

PullServer::PullServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
                       std::optional<TrainerRef> trainer, std::shared_ptr<SessionCounters> counters)
    : connection_(std::move(connection)),
      loop_(connection_->loop()),
      model_(std::move(model)),
      trainer_(trainer),
      counters_(std::move(counters)),
      pulls_(model_->store->shardCount()) {}

std::shared_ptr<PullServer::Reading> PullServer::reading(uint32_t shard, uint64_t pull) {
  auto& current = pulls_[shard];
  if (!current || current->pull != pull) {
    current = std::make_shared<Reading>();
    current->trainer = trainer_;
    current->pull = pull;
    current->policy = model_->policyOf(model_->store->shard(shard));
  }
  return current;
}

kj::Promise<void> PullServer::pull(Context context) {
  auto params = context.getParams();
  uint32_t shardIndex = params.getShard();
  uint64_t offset = params.getOffset(), count = params.getCount();
  uint64_t number = params.getPull();
  context.releaseParams();
  auto refuse = [context](const Error& error) mutable -> kj::Promise<void> {
    wire::writeError(error, context.getResults().initError());
    return kj::READY_NOW;
  };
  DaemonCounters& counters = loop_.environment().counters;
  if (loop_.environment().draining) {
    return refuse({ErrorCode::shuttingDown, "the daemon is shutting down"});
  }
  if (auto status = checkSlice(*model_, loop_.config().limits, shardIndex, offset, count); !status.ok()) {
    countRefusal(counters, status.error());
    return refuse(status.error());
  }
  if (!connection_->mayQueue()) {
    counters.refusedOverload.add();
    return refuse({ErrorCode::overloaded, "the answers that wait for this peer reach limits.outgoing_bytes"});
  }
  Shard& shard = model_->store->shard(shardIndex);
  auto reading = this->reading(shardIndex, number);
  return reading->policy->pull(shard, loop_.laneFor(model_, shard), *reading, offset, count)
      .then([this, context, refuse, reading, shardIndex,
             offset](Result<PullAnswer> answer) mutable -> kj::Promise<void> {
        if (!answer.ok()) return refuse(answer.error());
        std::span<const float> values = answer->view.values;
        // Pinned at the moment of building: the answer may outlive its call and even the RPC system.
        if (answer->view.owner) connection_->pin(values.data(), std::move(answer->view.owner));
        auto results = context.getResults(capnp::MessageSize{16, 0});
        auto slice = results.initSlice();
        slice.setPull(reading->pull);
        slice.setShard(shardIndex);
        slice.setOffset(offset);
        slice.setVersion(answer->version.value);
        slice.adoptValues(wire::referenceFloats(results, values));
        DaemonCounters& counters = loop_.environment().counters;
        counters.pullSlices.add();
        counters.pullBytes.add(values.size_bytes());
        if (counters_) counters_->bytesPulled.add(values.size_bytes());
        return kj::READY_NOW;
      });
}

}  // namespace psd
