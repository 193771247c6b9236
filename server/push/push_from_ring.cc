// The side of PushServer that has gradients copied out of rings on devices before it looks at them.

#include <utility>

#include "server/push/push_server.h"
#include "server/push/ring_gradient.h"

namespace psd {

bool PushServer::takesDeviceGradient(const PushSlice& slice) const {
  const auto step = begun(slice.step);
  const PartPush* part = step ? step->parts[slice.shard].get() : nullptr;
  return part ? part->policy->takesDeviceGradients()
              : home_->policyOf(model_, model_->store->shard(slice.shard))->takesDeviceGradients();
}

kj::Promise<PushReply> PushServer::pushFromRing(PushSlice slice) {
  auto over = kj::newPromiseAndFulfiller<void>();
  auto fulfiller = std::make_shared<kj::Own<kj::PromiseFulfiller<void>>>(kj::mv(over.fulfiller));
  slice.turn = {nullptr, [fulfiller](const void*) { (*fulfiller)->fulfill(); }};
  kj::Promise<void> before = kj::READY_NOW;
  KJ_IF_MAYBE (turn, turn_) {
    before = turn->addBranch();
  }
  turn_ = over.promise.fork();
  return pushCopied(std::move(slice), kj::mv(before));
}

kj::Promise<PushReply> PushServer::pushCopied(PushSlice slice, kj::Promise<void> turn) {
  Shard& shard = model_->store->shard(slice.shard);
  inFlight_++;
  counters_->waitForPush.add();
  return copyGradient(shard, home_->laneFor(model_, shard), slice.offset, slice.gradient.values(),
                      takesDeviceGradient(slice))
      .then([turn = kj::mv(turn)](Result<OwnGradient> copy) mutable {
        return turn.then([copy = std::move(copy)]() mutable { return std::move(copy); });
      })
      .then([this, slice = std::move(slice)](Result<OwnGradient> copy) mutable -> kj::Promise<PushReply> {
        if (!copy.ok()) return refused(copy.error());
        slice.gradient = copy->gradient;
        // The ring has its share of copies back when this one goes.
        using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
        slice.held = std::make_shared<const Both>(std::move(copy->owner),
                                                  std::move(slice.ring ? slice.ring : slice.held));
        slice.ring = nullptr;
        return pushHere(std::move(slice));
      })
      .attach(kj::defer([self = shared_from_this()] { self->landed(); }));
}

}  // namespace psd
