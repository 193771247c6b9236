#include "server/rpc/pull_server.h"

#include "common/wire/convert.h"
#include "server/rpc/slice_checks.h"

namespace psd {

PullServer::PullServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
                       std::optional<TrainerRef> trainer, std::shared_ptr<SessionCounters> counters,
                       const Codec* codec)
    : connection_(std::move(connection)),
      loop_(connection_->loop()),
      model_(std::move(model)),
      trainer_(trainer),
      counters_(std::move(counters)),
      codec_(codec),
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
  Asked asked{params.getShard(), params.getOffset(), params.getCount(), nullptr};
  uint64_t number = params.getPull();
  auto codecName = wire::textIn(params.getCodec());
  if (!codecName.empty()) asked.codec = codec_;
  const bool agreed = codecName.empty() || (codec_ && codecName == codec_->name());
  auto askedCodec = agreed ? std::string() : wire::printable(codecName);
  context.releaseParams();
  auto refuse = [context](const Error& error) mutable -> kj::Promise<void> {
    wire::writeError(error, context.getResults().initError());
    return kj::READY_NOW;
  };
  if (!agreed) return refuse(notAgreed(askedCodec, codec_));
  DaemonCounters& counters = loop_.environment().counters;
  if (loop_.environment().draining) {
    return refuse({ErrorCode::shuttingDown, "the daemon is shutting down"});
  }
  if (model_->retired()) {
    return refuse({ErrorCode::notReady, "the daemon serves the model in another order of its tensors now"});
  }
  if (auto status = checkSlice(*model_, loop_.config().limits, asked.shard, asked.offset, asked.count);
      !status.ok()) {
    countRefusal(counters, status.error());
    return refuse(status.error());
  }
  if (!connection_->mayQueue()) {
    counters.refusedOverload.add();
    return refuse({ErrorCode::overloaded, "the answers that wait for this peer reach limits.outgoing_bytes"});
  }
  Shard& shard = model_->store->shard(asked.shard);
  auto reading = this->reading(asked.shard, number);
  if (counters_) counters_->waitForParameters.add();
  auto answered = kj::defer([counters = counters_] {
    if (counters) counters->waitForParameters.subtract();
  });
  auto answering =
      reading->policy->pull(shard, loop_.laneFor(model_, shard), *reading, asked.offset, asked.count)
          .attach(kj::mv(answered))
          .then([this, context, reading, asked](Result<PullAnswer> values) mutable {
            const Status status =
                values.ok() ? answer(context, asked, reading->pull, *values) : values.status();
            if (!status.ok()) wire::writeError(status.error(), context.getResults().initError());
          });
  return connection_->promising(asked.count * sizeof(float), kj::mv(answering));
}

Status PullServer::answer(Context& context, const Asked& asked, uint64_t pull, const PullAnswer& answer) {
  PSD_ASSIGN_OR_RETURN(auto sent, bytesOf(answer.view, asked.codec));
  // Pinned at the moment of building: the answer may outlive its call and even the RPC system.
  if (sent.owner) connection_->pin(sent.bytes.data(), std::move(sent.owner));
  auto results = context.getResults(capnp::MessageSize{16, 0});
  auto slice = results.initSlice();
  slice.setPull(pull);
  slice.setShard(asked.shard);
  slice.setOffset(asked.offset);
  slice.setVersion(answer.version.value);
  slice.adoptValues(wire::referenceBytes(results, sent.bytes));
  const uint64_t valueBytes = answer.view.values.size_bytes();
  DaemonCounters& counters = loop_.environment().counters;
  counters.pullSlices.add();
  counters.pullBytes.add(sent.bytes.size());
  counters.pullValueBytes.add(valueBytes);
  if (counters_) {
    counters_->bytesPulled.add(sent.bytes.size());
    counters_->valueBytesPulled.add(valueBytes);
  }
  return {};
}

Result<SliceEncoder::Encoded> PullServer::bytesOf(const ReadView& view, const Codec* codec) {
  if (codec) return encoder_.encode(*codec, view);
  return SliceEncoder::Encoded{std::as_bytes(view.values), view.owner};
}

}  // namespace psd
