#include "trainer/client/transport/message_transport.h"

#include <cstring>

#include <fmt/format.h>

#include "common/codec/topk.h"
#include "trainer/client/transport/push_calls.h"

namespace psd {
namespace {

constexpr size_t kSparseBytesMin = 4096;  // in smaller slices the message costs more than its zeros

}  // namespace

MessageTransport::MessageTransport(DaemonConnection& connection) : connection_(connection) {
  connection.setPlacer(
      [this](capnp::rpc::Message::Reader envelope, size_t words) { return placeFor(envelope, words); });
}

kj::ArrayPtr<capnp::word> MessageTransport::placeFor(capnp::rpc::Message::Reader envelope, size_t words) {
  if (!envelope.isReturn() || !envelope.getReturn().isResults()) return nullptr;
  // A RowsResult starts with the same fields as a PullResult.
  auto result = envelope.getReturn().getResults().getContent().getAs<schema::PullResult>();
  if (!result.isSlice()) return nullptr;
  auto slice = result.getSlice();
  auto place = places_.find({slice.getPull(), slice.getShard(), slice.getOffset()});
  if (place == places_.end() || place->second.size_bytes() != words * sizeof(capnp::word)) return nullptr;
  return kj::arrayPtr(reinterpret_cast<capnp::word*>(place->second.data()), words);
}

std::shared_ptr<const void> MessageTransport::expect(uint64_t pull, ShardId shard, uint64_t offset,
                                                     std::span<std::byte> into) {
  if (into.empty()) return nullptr;
  const Key key{pull, shard.value, offset};
  places_[key] = into;
  return {nullptr, [this, key](const void*) { places_.erase(key); }};
}

kj::Promise<SlicePushed> MessageTransport::push(const PushRequest& push, const Slice& slice,
                                                const SliceValues& values) {
  if (auto few = nonZerosOf(slice, std::as_bytes(values.values))) {
    return pushEncoded(push, slice, TopK::kName, few->bytes, std::move(few->owner));
  }
  auto request = connection_.trainer().pushRequest(pushCall(push, slice));
  describe(request.initHead(), push, slice);
  if (values.owner) connection_.stream().pin(values.values.data(), values.owner);
  request.adoptGradient(
      wire::referenceFloats(static_cast<schema::Trainer::PushParams::Builder&>(request), values.values));
  return request.send().dropPipeline().then(
      [bytes = values.values.size_bytes()](auto answer) { return readAnswer(answer, bytes); });
}

kj::Promise<SlicePushed> MessageTransport::pushBytes(const PushRequest& push, const Slice& slice,
                                                     std::span<const std::byte> bytes,
                                                     std::shared_ptr<const void> owner) {
  if (auto few = nonZerosOf(slice, bytes)) {
    return pushEncoded(push, slice, TopK::kName, few->bytes, std::move(few->owner));
  }
  return pushEncoded(push, slice, "", bytes, std::move(owner));
}

std::optional<SparseCodec::Encoded> MessageTransport::nonZerosOf(const Slice& slice,
                                                                 std::span<const std::byte> bytes) const {
  if (!pushesNonZeros_ || bytes.size() < kSparseBytesMin) return {};
  const uint64_t mostBytes = bytes.size() / 2;
  const auto encode = [&](std::span<const float> values) {
    return SparseCodec::encodeNonZeros(values, mostBytes);
  };
  const Codec* const codec = codecOf(slice.dtype);
  if (!codec) {
    const std::span values(reinterpret_cast<const float*>(bytes.data()), slice.count);
    return looksSparse(slice.count, sizeof(float), [&](size_t i) { return values[i] == 0; }) ? encode(values)
                                                                                             : std::nullopt;
  }
  const auto* const halves = reinterpret_cast<const uint16_t*>(bytes.data());
  if (!looksSparse(slice.count, sizeof(uint16_t), [&](size_t i) { return (halves[i] & 0x7fff) == 0; }))
    return {};
  std::vector<float> wide(slice.count);
  codec->decode(bytes, slice.count, 0, wide);
  return encode(wide);
}

kj::Promise<SlicePushed> MessageTransport::pushEncoded(const PushRequest& push, const Slice& slice,
                                                       std::string_view codec,
                                                       std::span<const std::byte> bytes,
                                                       std::shared_ptr<const void> owner) {
  auto request = connection_.trainer().pushRequest(pushCall(push, slice));
  describe(request.initHead(), push, slice);
  if (!codec.empty()) request.setCodec(std::string(codec).c_str());
  request.setCount(static_cast<uint32_t>(slice.count));
  if (owner) connection_.stream().pin(bytes.data(), std::move(owner));
  request.adoptGradient(
      wire::referenceBytes(static_cast<schema::Trainer::PushParams::Builder&>(request), bytes));
  return request.send().dropPipeline().then(
      [size = bytes.size()](auto answer) { return readAnswer(answer, size); });
}

kj::Promise<Result<SlicePulled>> MessageTransport::pullBytes(uint64_t pull, const Slice& slice,
                                                             std::span<std::byte> into) {
  return pullEncoded(pull, slice, "",
                     [into](std::span<const std::byte> bytes) -> Status {
                       if (bytes.size() != into.size()) {
                         return {ErrorCode::protocolMismatch,
                                 fmt::format("the daemon sent {} bytes for a slice of {} bytes", bytes.size(),
                                             into.size())};
                       }
                       // Large slices were read directly into their place.
                       if (bytes.data() != into.data()) {
                         std::memcpy(into.data(), bytes.data(), bytes.size());
                       }
                       return {};
                     })
      .attach(expect(pull, slice.shard, slice.offset, into));
}

kj::Promise<Result<SlicePulled>> MessageTransport::pullEncoded(uint64_t pull, const Slice& slice,
                                                               std::string_view codec, Take take) {
  auto request = connection_.reader().pullRequest(capnp::MessageSize{8, 0});
  request.setPull(pull);
  request.setShard(slice.shard.value);
  request.setOffset(slice.offset);
  request.setCount(slice.count);
  if (!codec.empty()) request.setCodec(std::string(codec).c_str());
  return request.send().then(
      [take = std::move(take)](capnp::Response<schema::PullResult> answer) -> Result<SlicePulled> {
        if (answer.isError()) return sanitized(wire::readError(answer.getError()));
        const auto bytes = wire::bytesIn(answer.getSlice().getValues());
        PSD_RETURN_IF_ERROR(take(bytes));
        return SlicePulled{Version{answer.getSlice().getVersion()}, bytes.size()};
      });
}

kj::Promise<Result<SlicePulled>> MessageTransport::pullDelta(uint64_t pull, const Slice& slice,
                                                             const Held& held, TakeDelta take) {
  auto request = connection_.reader().pullRequest(capnp::MessageSize{16, 0});
  request.setPull(pull);
  request.setShard(slice.shard.value);
  request.setOffset(slice.offset);
  request.setCount(slice.count);
  request.setDeltas(true);
  request.setView(held.view);
  request.setHeld(held.version.value);
  return request.send().then(
      [take = std::move(take)](capnp::Response<schema::PullResult> answer) -> Result<SlicePulled> {
        if (answer.isError()) return sanitized(wire::readError(answer.getError()));
        const auto pulled = answer.getSlice();
        PulledDelta delta{PulledDelta::What::values, pulled.getView(), Version{pulled.getVersion()},
                          wire::bytesIn(pulled.getValues())};
        switch (pulled.getContent()) {
          case schema::PulledValues::WHOLE: break;
          case schema::PulledValues::DELTA: delta.what = PulledDelta::What::delta; break;
          case schema::PulledValues::SAME: delta.what = PulledDelta::What::same; break;
          default: return Error{ErrorCode::protocolMismatch, "the daemon sent values of an unknown kind"};
        }
        return take(delta);
      });
}

}  // namespace psd
