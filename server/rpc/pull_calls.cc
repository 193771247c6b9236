#include "server/rpc/pull_calls.h"

#include "common/wire/convert.h"
#include "server/model/slice_checks.h"

namespace psd {

PullCalls::PullCalls(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
                     std::optional<TrainerRef> trainer, std::shared_ptr<SessionCounters> counters,
                     const Codec* codec)
    : connection_(std::move(connection)),
      service_(connection_->loop(), std::move(model), trainer, std::move(counters), codec) {
  connection_->keeperCame(*this);
}

PullCalls::~PullCalls() { connection_->keeperWent(*this); }

template <class Call>
kj::Promise<void> PullCalls::refuse(Call call, const Error& error) {
  countRefusal(connection_->loop().environment().counters, error);
  wire::writeError(error, call.getResults().initError());
  return kj::READY_NOW;
}

Status PullCalls::mayPull(const PullRequest& request) const {
  PSD_RETURN_IF_ERROR(service_.check(request));
  if (connection_->mayQueue()) return {};
  return {ErrorCode::overloaded, "the answers that wait for this peer reach limits.outgoing_bytes"};
}

kj::Promise<void> PullCalls::pull(Context context) {
  auto params = context.getParams();
  const PullRequest request{params.getPull(), params.getShard(), params.getOffset(), params.getCount()};
  const Result<const Codec*> codec = service_.agreedCodec(wire::textIn(params.getCodec()));
  context.releaseParams();
  if (!codec.ok()) return refuse(context, codec.error());
  if (auto status = mayPull(request); !status.ok()) return refuse(context, status.error());
  auto answering =
      service_.pull(request, *codec).then([this, context, request](Result<PulledSlice> slice) mutable {
        if (!slice.ok()) return wire::writeError(slice.error(), context.getResults().initError());
        answer(context, request, *std::move(slice));
      });
  return connection_->promising(request.count * sizeof(float), kj::mv(answering));
}

kj::Promise<void> PullCalls::pullTo(const std::shared_ptr<DeviceRing>& ring, DeviceContext context) {
  auto params = context.getParams();
  const PullRequest request{params.getPull(), params.getShard(), params.getOffset(), params.getCount()};
  if (auto status = mayPull(request); !status.ok()) return refuse(context, status.error());
  const auto place = ring->floatsAt(params.getAt(), request.count);
  if (!place.ok()) return refuse(context, place.error());
  auto answering = service_.pullTo(request, *place).then([context, ring](Result<Version> version) mutable {
    if (!version.ok()) return wire::writeError(version.error(), context.getResults().initError());
    context.getResults(capnp::MessageSize{4, 0}).setVersion(version->value);
  });
  return connection_->promising(place->size_bytes(), kj::mv(answering));
}

void PullCalls::answer(Context& context, const PullRequest& request, PulledSlice slice) {
  // Pinned at the moment of building: the answer may outlive its call, the model and even the RPC system.
  connection_->pin(slice.bytes.data(), std::move(slice.owner));
  auto results = context.getResults(capnp::MessageSize{16, 0});
  auto out = results.initSlice();
  out.setPull(request.pull);
  out.setShard(request.shard);
  out.setOffset(request.offset);
  out.setVersion(slice.version.value);
  out.adoptValues(wire::referenceBytes(results, slice.bytes));
}

}  // namespace psd
