#pragma once

#include <algorithm>

#include "common/wire/convert.h"
#include "schema/psd.capnp.h"
#include "trainer/client/channel.h"
#include "trainer/client/cleared.h"

namespace psd {

/// What one slice's answer says of the push.
inline PushOutcome outcomeOf(schema::PushOutcome outcome) {
  switch (outcome) {
    case schema::PushOutcome::STALE: return PushOutcome::stale;
    case schema::PushOutcome::LATE: return PushOutcome::late;
    default: return PushOutcome::applied;
  }
}

/// The error of the answer to a slice of `bytes`, if it is one; else the answer goes into `info`.
inline Status readAnswer(schema::PushResult::Reader answer, const Slice& slice, uint64_t bytes,
                         PushInfo& info) {
  if (answer.isError()) return cleared(wire::readError(answer.getError()));
  auto accepted = answer.getAccepted();
  Version& version = info.versions[slice.shard.value];
  version = std::max(version, Version{accepted.getVersion()});
  info.staleness = std::max(info.staleness, accepted.getStaleness());
  info.outcome = std::max(info.outcome, outcomeOf(accepted.getOutcome()));
  info.bytes += bytes;
  return {};
}

/// Sets what a push says besides where its gradient is.
template <class Request>
void describe(Request& request, const PushOrder& order, const Slice& slice) {
  const size_t shard = slice.shard.value;
  request.setStep(order.step.value);
  request.setShard(slice.shard.value);
  request.setOffset(slice.offset);
  request.setBasis(shard < order.basis.size() ? order.basis[shard].value : 0);
  request.setSamples(order.samples);
}

}  // namespace psd
