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

/// Sets what a push says besides where its gradient is. `parts`: shards of the model.
inline void describe(schema::PushHead::Builder head, const PushOrder& order, const Slice& slice,
                     size_t parts) {
  const size_t shard = slice.shard.value;
  head.setStep(order.step.value);
  head.setShard(slice.shard.value);
  head.setOffset(slice.offset);
  head.setBasis(shard < order.basis.size() ? order.basis[shard].value : 0);
  head.setSamples(order.samples);
  head.setParts(static_cast<uint32_t>(parts));
}

}  // namespace psd
