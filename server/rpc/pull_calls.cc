#include "server/rpc/pull_calls.h"

#include <algorithm>

#include "common/wire/convert.h"
#include "server/model/slice_checks.h"

namespace psd {
namespace {

constexpr size_t kStateNameBytesMax = 64;

}  // namespace

PullCalls::PullCalls(std::shared_ptr<Connection> connection, PullService& service, StatePulls* states)
    : connection_(std::move(connection)), service_(service), states_(states) {
  connection_->addKeeper(*this);
}

PullCalls::~PullCalls() { connection_->removeKeeper(*this); }

template <class Call>
kj::Promise<void> PullCalls::refuse(Call call, const Error& error) {
  countRefusal(connection_->loop().environment().counters, error);
  wire::writeError(error, call.getResults().initError());
  return kj::READY_NOW;
}

Status PullCalls::mayPull(const Status& checked) const {
  PSD_RETURN_IF_ERROR(checked);
  if (connection_->canQueueAnswer()) return {};
  return {ErrorCode::overloaded, "this peer's unread answers have reached limits.outgoing_bytes"};
}

kj::Promise<void> PullCalls::pull(Context context) {
  auto params = context.getParams();
  const PullRequest request{params.getPull(), params.getShard(), params.getOffset(), params.getCount()};
  const Result<const Codec*> codec = service_.agreedCodec(wire::textIn(params.getCodec()));
  const HeldValues held{params.getView(), Version{params.getHeld()}};
  const bool deltas = params.getDeltas();
  context.releaseParams();
  if (deltas) return pullDelta(context, request, held);
  if (!codec.ok()) return refuse(context, codec.error());
  if (auto status = mayPull(service_.check(request)); !status.ok()) return refuse(context, status.error());
  auto answering =
      service_.pull(request, *codec).then([this, context, request](Result<PulledSlice> slice) mutable {
        if (!slice.ok()) return wire::writeError(slice.error(), context.getResults().initError());
        answer(context, request, *std::move(slice));
      });
  return connection_->countPromised(request.count * sizeof(float), kj::mv(answering));
}

template <class Call, class Go>
kj::Promise<void> PullCalls::onceReadable(Call context, RowPullRequest request, Go go) {
  auto waits = service_.waitToPull(request);
  KJ_IF_MAYBE (wait, waits) {
    // The pushes that end the wait may need the message's share of the budget: keep only the ids.
    auto ids = kj::heapArray<uint64_t>(request.rows.ids.begin(), request.rows.ids.end());
    request.rows.ids = {ids.begin(), ids.size()};
    context.releaseParams();
    const uint64_t bytes = ids.asBytes().size();
    auto going = wait->then([this, context, request = std::move(request), go](Status status) mutable {
      if (status.ok()) status = mayPull(service_.check(request));
      return status.ok() ? go(std::move(request)) : refuse(context, status.error());
    });
    return connection_->countPromised(bytes, going.attach(kj::mv(ids)));
  }
  return go(std::move(request));  // the ids lie in the parameters, which stay until the answer is sent
}

template <class Go>
kj::Promise<void> PullCalls::onceReserved(RowsContext context, RowPullRequest request, uint64_t bytes,
                                          Go go) {
  if (Connection::Reservation room = connection_->tryReserveCopy(bytes, service_.isReader())) {
    return go(std::move(request)).attach(std::move(room));
  }
  return connection_->awaitCopy(bytes, service_.isReader())
      .then([this, context, request = std::move(request),
             go](Connection::Reservation room) mutable -> kj::Promise<void> {
        const Status status = mayPull(service_.check(request));
        if (!status.ok()) return refuse(context, status.error());
        return go(std::move(request)).attach(std::move(room));
      });
}

kj::Promise<void> PullCalls::pullRows(RowsContext context) {
  auto params = context.getParams();
  const Result<const Codec*> codec = service_.agreedCodec(wire::textIn(params.getCodec()));
  if (!codec.ok()) return refuse(context, codec.error());
  auto rows = wire::rowsIn(params.getRuns(), params.getIds());
  if (!rows.ok()) return refuse(context, rows.error());
  RowPullRequest request{params.getShard(), *std::move(rows)};
  if (auto status = mayPull(service_.check(request)); !status.ok()) return refuse(context, status.error());
  const auto answer = [this, context, codec = *codec, pull = params.getPull(),
                       first = params.getFirst()](RowPullRequest request) mutable {
    const uint32_t shard = request.shard;
    return service_.pullRows(std::move(request), codec)
        .then([this, context, pull, shard, first](Result<PulledRows> pulled) mutable {
          if (!pulled.ok()) return wire::writeError(pulled.error(), context.getResults().initError());
          connection_->pin(pulled->bytes.data(), std::move(pulled->owner));
          auto results = context.getResults(capnp::MessageSize{16, 0});
          auto out = results.initRows();
          out.setPull(pull);
          out.setShard(shard);
          out.setFirst(first);
          out.setVersion(pulled->answer.version.value);
          out.setKnown(pulled->answer.known);
          out.adoptValues(wire::referenceBytes(results, pulled->bytes));
          context.releaseParams();
        });
  };
  const auto go = [this, context, answer](RowPullRequest request) mutable {
    const uint64_t bytes = service_.valueBytes(request);
    return onceReserved(context, std::move(request), bytes, answer);
  };
  return onceReadable(context, std::move(request), go);
}

kj::Promise<void> PullCalls::pullRowsTo(const SharedRing& ring, SharedRowsContext context) {
  auto params = context.getParams();
  auto rows = wire::rowsIn(params.getRuns(), params.getIds());
  if (!rows.ok()) return refuse(context, rows.error());
  RowPullRequest request{params.getShard(), *std::move(rows)};
  if (auto status = service_.check(request); !status.ok()) return refuse(context, status.error());
  const auto place = ring.floatsAt(params.getAt(), service_.valueBytes(request) / sizeof(float));
  if (!place.ok()) return refuse(context, place.error());
  const auto go = [this, context, place = *place](RowPullRequest request) mutable {
    return service_.pullRowsTo(std::move(request), place).then([context](Result<RowsAnswer> answer) mutable {
      if (!answer.ok()) return wire::writeError(answer.error(), context.getResults().initError());
      auto out = context.getResults(capnp::MessageSize{8, 0}).initRows();
      out.setVersion(answer->version.value);
      out.setKnown(answer->known);
      context.releaseParams();
    });
  };
  return onceReadable(context, std::move(request), go).attach(ring.memory());
}

kj::Promise<void> PullCalls::pullTo(const std::shared_ptr<DeviceRing>& ring, DeviceContext context) {
  auto params = context.getParams();
  const PullRequest request{params.getPull(), params.getShard(), params.getOffset(), params.getCount()};
  if (auto status = mayPull(service_.check(request)); !status.ok()) return refuse(context, status.error());
  const auto place = ring->floatsAt(params.getAt(), request.count);
  if (!place.ok()) return refuse(context, place.error());
  auto answering = service_.pullTo(request, *place).then([context, ring](Result<Version> version) mutable {
    if (!version.ok()) return wire::writeError(version.error(), context.getResults().initError());
    context.getResults(capnp::MessageSize{4, 0}).setVersion(version->value);
  });
  return connection_->countPromised(place->size_bytes(), kj::mv(answering));
}

kj::Promise<void> PullCalls::pullState(StateContext context) {
  auto params = context.getParams();
  const StateRequest request{params.getPull(), params.getShard(),
                             std::string(wire::textIn(params.getState()).substr(0, kStateNameBytesMax)),
                             params.getOffset(), params.getCount()};
  context.releaseParams();
  if (auto status = mayPull(states_->check(request)); !status.ok()) return refuse(context, status.error());
  auto answering =
      states_->pull(request).then([this, context, pull = request.pull](Result<StateSlice> slice) mutable {
        if (!slice.ok()) return wire::writeError(slice.error(), context.getResults().initError());
        auto results = context.getResults();
        auto out = results.initSlice();
        out.setVersion(slice->version.value);
        out.setPull(pull);
        out.setSteps(slice->steps);
        auto states = out.initStates(static_cast<kj::uint>(slice->states.size()));
        for (kj::uint i = 0; i < states.size(); i++) states.set(i, slice->states[i].c_str());
        if (slice->values.empty()) return;
        connection_->pin(slice->values.data(), std::move(slice->owner));
        out.adoptValues(wire::referenceBytes(results, std::as_bytes(slice->values)));
      });
  return connection_->countPromised(request.count * sizeof(float), kj::mv(answering));
}

kj::Promise<void> PullCalls::pullDelta(Context context, const PullRequest& request, const HeldValues& held) {
  if (auto status = mayPull(service_.check(request)); !status.ok()) return refuse(context, status.error());
  auto answering =
      service_.pullDelta(request, held).then([this, context, request](Result<PublishedSlice> slice) mutable {
        if (!slice.ok()) return wire::writeError(slice.error(), context.getResults().initError());
        auto out = answer(context, request, {slice->version, slice->bytes, std::move(slice->owner)});
        out.setView(slice->view);
        switch (slice->what) {
          case PublishedSlice::What::values: out.setContent(schema::PulledValues::WHOLE); break;
          case PublishedSlice::What::delta: out.setContent(schema::PulledValues::DELTA); break;
          case PublishedSlice::What::same: out.setContent(schema::PulledValues::SAME); break;
        }
      });
  return connection_->countPromised(request.count * sizeof(float), kj::mv(answering));
}

kj::Promise<void> PullCalls::buffers(BuffersContext context) {
  const uint64_t set = context.getParams().getSet(), offset = context.getParams().getOffset();
  context.releaseParams();
  const Buffers::Current current = service_.buffers();
  if (set != 0 && set != current.number) {
    return refuse(context, {ErrorCode::notReady, "newer buffers have replaced those of this call"});
  }
  const auto file = current.set ? current.set->file() : std::span<const std::byte>();
  if (offset > file.size()) return refuse(context, {ErrorCode::badSlice, "the buffers end before that byte"});
  const auto bytes =
      file.subspan(offset, std::min(file.size() - offset, connection_->loop().config().limits.sliceBytes));
  auto make = [context, current, bytes, size = file.size()]() mutable {
    auto slice = context.getResults().initSlice();
    slice.setSet(current.number);
    slice.setSize(size);
    slice.setBytes(kj::arrayPtr(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()));
  };
  auto refused = [this, context](const Error& error) mutable { refuse(context, error); };
  return connection_->answerWithin(bytes.size(), std::move(make), std::move(refused));
}

schema::PullResult::Slice::Builder PullCalls::answer(Context& context, const PullRequest& request,
                                                     PulledSlice slice) {
  // Pinned when built: the answer may outlive its call, the model and even the RPC system.
  if (!slice.bytes.empty()) connection_->pin(slice.bytes.data(), std::move(slice.owner));
  auto results = context.getResults(capnp::MessageSize{16, 0});
  auto out = results.initSlice();
  out.setPull(request.pull);
  out.setShard(request.shard);
  out.setOffset(request.offset);
  out.setVersion(slice.version.value);
  if (!slice.bytes.empty()) out.adoptValues(wire::referenceBytes(results, slice.bytes));
  return out;
}

}  // namespace psd
