#pragma once

#include <utility>

#include "common/wire/convert.h"
#include "schema/psd.capnp.h"
#include "trainer/client/transport/ring_places.h"
#include "trainer/client/transport/sanitized.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// Hyperparameters that a push carries for a shard; null: none.
inline const Hyperparameters* hyperparametersOf(const PushRequest& push, const Slice& slice) {
  return push.ofBlock ? &(*push.ofBlock)[slice.shard.value] : nullptr;
}

/// Size of a push without its gradient, so that the message has one segment.
inline capnp::MessageSize pushCall(const PushRequest& push, const Slice& slice) {
  const Hyperparameters* const hyperparameters = hyperparametersOf(push, slice);
  return {27 + (hyperparameters ? wire::wordsOf(*hyperparameters) : 0), 0};
}

/// Sets the fields of a push other than the place of its gradient.
inline void describe(schema::PushHead::Builder head, const PushRequest& push, const Slice& slice) {
  const size_t shard = slice.shard.value;
  head.setStep(push.step.value);
  head.setShard(slice.shard.value);
  head.setOffset(slice.offset);
  head.setBasis(shard < push.basis.size() ? push.basis[shard].value : 0);
  head.setSamples(push.samples);
  head.setLocalSteps(push.localSteps);
  head.setParts(push.parts);
  head.setTotal(slice.total);
  head.setLeadRound(push.leadRound);
  if (const auto* const carried = hyperparametersOf(push, slice)) {
    wire::writeHyperparameters(*carried, head.initHyperparameters());
  }
}

inline PushOutcome outcomeOf(schema::PushOutcome outcome) {
  switch (outcome) {
    case schema::PushOutcome::RECEIVED: return PushOutcome::received;
    case schema::PushOutcome::STALE: return PushOutcome::stale;
    case schema::PushOutcome::LATE: return PushOutcome::late;
    default: return PushOutcome::applied;
  }
}

/// Parses the answer to a slice that was sent as `bytes` bytes.
inline SlicePushed readAnswer(schema::PushResult::Reader answer, uint64_t bytes) {
  SlicePushed pushed;
  for (const uint32_t shard : answer.getDropped()) pushed.dropped.push_back(ShardId{shard});
  if (answer.isError()) {
    pushed.status = sanitized(wire::readError(answer.getError()));
    return pushed;
  }
  const auto accepted = answer.getAccepted();
  pushed.outcome = outcomeOf(accepted.getOutcome());
  pushed.version = Version{accepted.getVersion()};
  pushed.staleness = accepted.getStaleness();
  pushed.bytes = bytes;
  return pushed;
}

/// Pushes a slice whose values are at `place` of a ring; the answer frees the place.
template <class Request>
kj::Promise<SlicePushed> pushAt(RingPlaces::Place place, Request request, const PushRequest& push,
                                const Slice& slice) {
  describe(request.initHead(), push, slice);
  request.setAt(place.at());
  request.setCount(slice.count);
  return request.send().dropPipeline().then(
      [bytes = slice.count * sizeof(float), place = std::move(place)](auto answer) mutable {
        place.release();
        return readAnswer(answer, bytes);
      });
}

}  // namespace psd
