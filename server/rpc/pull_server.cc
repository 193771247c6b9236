#include "server/rpc/pull_server.h"

#include <iterator>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/model/slice_checks.h"

namespace psd {
namespace {

Error letGo(uint32_t shard, uint64_t pull, uint64_t timeoutMs) {
  return {ErrorCode::deadlineExceeded, "pull " + std::to_string(pull) + " of shard " + std::to_string(shard) +
                                           " has asked for nothing for limits.pull_timeout_ms (" +
                                           std::to_string(timeoutMs) + "): begin it anew"};
}

Error tooManyAnswers() {
  return {ErrorCode::overloaded, "the answers that wait for this peer reach limits.outgoing_bytes"};
}

}  // namespace

PullServer::PullServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
                       std::optional<TrainerRef> trainer, std::shared_ptr<SessionCounters> counters,
                       const Codec* codec)
    : connection_(std::move(connection)),
      loop_(connection_->loop()),
      model_(std::move(model)),
      trainer_(trainer),
      counters_(std::move(counters)),
      codec_(codec),
      pulls_(model_->store->shardCount()) {
  connection_->keeperCame(*this);
}

PullServer::~PullServer() { connection_->keeperWent(*this); }

std::shared_ptr<PullServer::Reading> PullServer::reading(uint32_t shard, uint64_t pull) {
  auto& current = pulls_[shard];
  if (!current || current->pull != pull) {
    current = std::make_shared<Reading>();
    current->trainer = trainer_;
    current->pull = pull;
    current->policy = loop_.policyOf(model_, model_->store->shard(shard));
  }
  return current;
}

std::shared_ptr<const void> PullServer::asking(uint32_t shard, const std::shared_ptr<Reading>& reading) {
  reading->asked = loop_.now();
  reading->unanswered++;
  return {nullptr, [this, shard, reading](const void*) {
            reading->unanswered--;
            reading->asked = loop_.now();  // it was not the peer that made itself wait
            if (reading->snapshot != nullptr) holding_.insert(shard);
          }};
}

void PullServer::letGoOfIdle(kj::TimePoint since) {
  for (auto shard = holding_.begin(); shard != holding_.end();) {
    Reading& reading = *pulls_[*shard];
    const bool idle = reading.unanswered == 0 && reading.asked <= since;
    if (idle) {
      reading.letGo = true;
      reading.snapshot = nullptr;
    }
    shard = reading.snapshot == nullptr ? holding_.erase(shard) : std::next(shard);
  }
}

Status PullServer::mayPull(const Asked& asked) const {
  if (loop_.environment().draining) return {ErrorCode::shuttingDown, "the daemon is shutting down"};
  if (model_->retired()) {
    return {ErrorCode::notReady, "the daemon serves the model in another order of its tensors now"};
  }
  return checkSlice(*model_, loop_.config().limits, asked.shard, asked.offset, asked.count);
}

template <class Call>
kj::Promise<void> PullServer::refuse(Call call, const Error& error) {
  countRefusal(loop_.environment().counters, error);
  wire::writeError(error, call.getResults().initError());
  return kj::READY_NOW;
}

std::shared_ptr<const void> PullServer::countWait() {
  if (!counters_) return nullptr;
  counters_->waitForParameters.add();
  return {nullptr, [counters = counters_](const void*) { counters->waitForParameters.subtract(); }};
}

kj::Promise<void> PullServer::pull(Context context) {
  auto params = context.getParams();
  Asked asked{params.getShard(), params.getOffset(), params.getCount(), nullptr};
  uint64_t number = params.getPull();
  auto codecName = wire::textIn(params.getCodec());
  if (!codecName.empty()) asked.codec = codec_;
  const bool agreed = codecName.empty() || (codec_ && codecName == codec_->name());
  auto askedCodec = agreed ? std::string() : printable(codecName);
  context.releaseParams();
  const Status allowed = agreed ? mayPull(asked) : notAgreed(askedCodec, codec_);
  if (!allowed.ok()) return refuse(context, allowed.error());
  if (!connection_->mayQueue()) return refuse(context, tooManyAnswers());
  Shard& shard = model_->store->shard(asked.shard);
  auto reading = this->reading(asked.shard, number);
  if (reading->letGo) return refuse(context, letGo(asked.shard, number, loop_.config().limits.pullTimeoutMs));
  auto values =
      reading->policy->pull(shard, loop_.laneFor(model_, shard), *reading, asked.offset, asked.count);
  auto answering = values.attach(countWait(), asking(asked.shard, reading))
                       .then([this, context, reading, asked](Result<PullAnswer> values) mutable {
                         const Status status =
                             values.ok() ? answer(context, asked, reading->pull, *values) : values.status();
                         if (!status.ok()) wire::writeError(status.error(), context.getResults().initError());
                       });
  return connection_->promising(asked.count * sizeof(float), kj::mv(answering));
}

kj::Promise<void> PullServer::pullTo(const std::shared_ptr<DeviceRing>& ring, DeviceContext context) {
  auto params = context.getParams();
  const Asked asked{params.getShard(), params.getOffset(), params.getCount(), nullptr};
  if (auto status = mayPull(asked); !status.ok()) return refuse(context, status.error());
  const auto place = ring->floatsAt(params.getAt(), asked.count);
  if (!place.ok()) return refuse(context, place.error());
  if (!connection_->mayQueue()) return refuse(context, tooManyAnswers());
  Shard& shard = model_->store->shard(asked.shard);
  auto reading = this->reading(asked.shard, params.getPull());
  if (reading->letGo) {
    return refuse(context, letGo(asked.shard, reading->pull, loop_.config().limits.pullTimeoutMs));
  }
  auto values = reading->policy->pullTo(shard, loop_.laneFor(model_, shard), *reading, asked.offset, *place);
  auto answering =
      values.attach(countWait(), asking(asked.shard, reading))
          .then([this, context, reading, ring, bytes = place->size_bytes()](Result<Version> version) mutable {
            if (!version.ok()) return wire::writeError(version.error(), context.getResults().initError());
            context.getResults(capnp::MessageSize{4, 0}).setVersion(version->value);
            count(bytes, bytes);
          });
  return connection_->promising(place->size_bytes(), kj::mv(answering));
}

void PullServer::count(uint64_t bytes, uint64_t valueBytes) {
  DaemonCounters& counters = loop_.environment().counters;
  counters.pullSlices.add();
  counters.pullBytes.add(bytes);
  counters.pullValueBytes.add(valueBytes);
  if (!counters_) return;
  counters_->bytesPulled.add(bytes);
  counters_->valueBytesPulled.add(valueBytes);
}

Status PullServer::answer(Context& context, const Asked& asked, uint64_t pull, const PullAnswer& answer) {
  PSD_ASSIGN_OR_RETURN(auto sent, bytesOf(answer.view, asked.codec));
  // Pinned at the moment of building: the answer may outlive its call, the model and even the RPC system.
  if (!sent.owner) sent.owner = model_;
  connection_->pin(sent.bytes.data(), std::move(sent.owner));
  auto results = context.getResults(capnp::MessageSize{16, 0});
  auto slice = results.initSlice();
  slice.setPull(pull);
  slice.setShard(asked.shard);
  slice.setOffset(asked.offset);
  slice.setVersion(answer.version.value);
  slice.adoptValues(wire::referenceBytes(results, sent.bytes));
  count(sent.bytes.size(), answer.view.values.size_bytes());
  return {};
}

Result<SliceEncoder::Encoded> PullServer::bytesOf(const ReadView& view, const Codec* codec) {
  if (codec) return encoder_.encode(*codec, view);
  return SliceEncoder::Encoded{std::as_bytes(view.values), view.owner};
}

}  // namespace psd
