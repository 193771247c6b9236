#include "trainer/client/transport/message_rows.h"

#include <fmt/format.h>

#include "common/codec/row_codec.h"
#include "trainer/client/transport/push_calls.h"
#include "trainer/client/transport/row_messages.h"

namespace psd {
namespace {

/// A codec may write slightly past the encoded size, and messages are written in whole words.
constexpr uint64_t kRowsReadablePastEnd = 8;

std::shared_ptr<const Codec> forRows(const std::shared_ptr<const Codec>& codec) {
  return codec && codec->suitsParameters() ? codec : nullptr;
}

/// The values if a message can reference them in place; else empty.
template <class Values>
Values ifAligned(Values values) {
  return reinterpret_cast<uintptr_t>(values.data()) % sizeof(capnp::word) == 0 ? values : Values();
}

std::vector<RowBlock> blocksOf(const RowSlice& slice, const RowBatch& batch) {
  std::vector<RowBlock> blocks;
  for (const RowSlice::Piece& piece : slice.pieces) blocks.push_back({piece.count, batch.dim(piece.table)});
  return blocks;
}

Status takeValues(std::span<const std::byte> bytes, const RowSlice& slice, RowBatch& batch,
                  const Codec* codec) {
  if (codec) {
    const std::vector<RowBlock> blocks = blocksOf(slice, batch);
    PSD_RETURN_IF_ERROR(checkRowBytes(*codec, blocks, bytes));
    std::vector<float> values(slice.values);
    decodeRows(*codec, blocks, bytes, values);
    placeValues(values, slice, batch);
    return {};
  }
  if (bytes.size() != slice.values * sizeof(float)) {
    return {ErrorCode::protocolMismatch,
            fmt::format("the daemon sent {} bytes for rows of {} values", bytes.size(), slice.values)};
  }
  const auto* const values = reinterpret_cast<const float*>(bytes.data());
  const auto& first = slice.pieces.front();
  const auto place = batch.rows(first.table).subspan(size_t{first.begin} * batch.dim(first.table));
  // Large slices were read directly into their place.
  if (values != place.data()) placeValues({values, slice.values}, slice, batch);
  return {};
}

}  // namespace

void MessageRows::useCodecs(const std::shared_ptr<const Codec>& pushes,
                            const std::shared_ptr<const Codec>& pulls) {
  pushCodec_ = forRows(pushes);
  pullCodec_ = forRows(pulls);
}

kj::Promise<Result<SlicePulled>> MessageRows::pull(uint64_t pull, const RowSlice& slice, RowBatch& batch) {
  auto request = connection_.reader().pullRowsRequest(rowCallSize(slice, 0));
  request.setPull(pull);
  request.setShard(slice.shard.value);
  request.setFirst(slice.first);
  nameRows(request, slice, &batch);
  std::shared_ptr<const void> expected;
  if (pullCodec_) {
    request.setCodec(std::string(pullCodec_->name()).c_str());
  } else {
    const auto contiguous = neighbours(slice, batch, [&](uint32_t table) { return batch.rows(table); });
    expected =
        messages_.expect(pull, slice.shard, slice.first, std::as_writable_bytes(ifAligned(contiguous)));
  }
  return request.send().then([slice, &batch, codec = pullCodec_,
                              expected](capnp::Response<schema::RowsResult> answer) -> Result<SlicePulled> {
    if (answer.isError()) return sanitized(wire::readError(answer.getError()));
    const auto rows = answer.getRows();
    const auto bytes = wire::bytesIn(rows.getValues());
    PSD_RETURN_IF_ERROR(takeValues(bytes, slice, batch, codec.get()));
    return SlicePulled{Version{rows.getVersion()}, bytes.size(), rows.getKnown()};
  });
}

kj::Promise<SlicePushed> MessageRows::push(const PushRequest& push, const RowSlice& slice) {
  if (pushCodec_ && slice.values > 0) return pushEncoded(push, slice);
  const uint64_t bytes = slice.values * sizeof(float);
  std::span<const float> contiguous;
  if (slice.count > 0) {
    contiguous =
        ifAligned(neighbours(slice, *push.rows, [&](uint32_t table) { return push.rows->gradients(table); }));
  }
  auto request = connection_.trainer().pushRowsRequest(rowCallSize(slice, contiguous.empty() ? bytes : 0));
  describe(request.initHead(), push, headOf(slice));
  nameRows(request, slice, push.rows.get());
  if (!contiguous.empty()) {
    request.adoptGradient(
        wire::referenceFloats(static_cast<schema::Trainer::PushRowsParams::Builder&>(request), contiguous));
  } else if (slice.count > 0) {
    auto gradient = request.initGradient(static_cast<kj::uint>(bytes));
    collectGradients(slice, *push.rows, {reinterpret_cast<float*>(gradient.begin()), slice.values});
  }
  return request.send().dropPipeline().then([bytes](auto answer) { return readAnswer(answer, bytes); });
}

kj::Promise<SlicePushed> MessageRows::pushEncoded(const PushRequest& push, const RowSlice& slice) {
  std::vector<float> values(slice.values);
  collectGradients(slice, *push.rows, values);
  const std::vector<RowBlock> blocks = blocksOf(slice, *push.rows);
  const uint64_t bytes = encodedRowBytes(*pushCodec_, blocks);
  const auto coded = std::make_shared<std::vector<float>>((bytes + kRowsReadablePastEnd) / sizeof(float) + 1);
  auto* const out = reinterpret_cast<std::byte*>(coded->data());
  const Status encoded = encodeRows(*pushCodec_, blocks, values, out);
  if (!encoded.ok()) return SlicePushed{.status = encoded};
  auto request = connection_.trainer().pushRowsRequest(rowCallSize(slice, 0));
  describe(request.initHead(), push, headOf(slice));
  nameRows(request, slice, push.rows.get());
  request.setCodec(std::string(pushCodec_->name()).c_str());
  connection_.stream().pin(out, coded);
  request.adoptGradient(
      wire::referenceBytes(static_cast<schema::Trainer::PushRowsParams::Builder&>(request), {out, bytes}));
  return request.send().dropPipeline().then([bytes](auto answer) { return readAnswer(answer, bytes); });
}

}  // namespace psd
