#include "trainer/client/transport/ring_rows.h"

#include "common/types/model_layout.h"
#include "trainer/client/transport/push_calls.h"
#include "trainer/client/transport/row_messages.h"

namespace psd {

RowRingSizes RowRingSizes::of(uint64_t valuesMax, uint64_t bytesMax, uint32_t window) {
  if (valuesMax == 0) return {};
  constexpr uint64_t kGrainBytes = kLayoutGrainElements * sizeof(float);
  const RingSizes places = RingSizes::of({{.shard = {}, .count = valuesMax}}, bytesMax / 2, window);
  if (places.places == 0) return {};
  const uint64_t left = bytesMax - 2 * places.places * places.placeBytes;
  return {places, left / kGrainBytes * kGrainBytes};
}

RingRows::RingRows(DaemonConnection& connection, RowTransport& messages, std::shared_ptr<SharedMemory> memory,
                   uint64_t begin, const RowRingSizes& sizes)
    : connection_(connection),
      messages_(messages),
      memory_(std::move(memory)),
      pushes_(begin, sizes.places.placeBytes, sizes.places.places),
      pulls_(begin + sizes.places.places * sizes.places.placeBytes, sizes.places.placeBytes,
             sizes.places.places),
      blocks_(std::make_shared<RingBlocks>(memory_, begin + sizes.bytes() - sizes.blockBytes,
                                           sizes.blockBytes)) {}

kj::Promise<SlicePushed> RingRows::push(const PushRequest& push, const RowSlice& slice) {
  if (slice.count == 0) return messages_.push(push, slice);
  const RowBatch& batch = *push.rows;
  const auto contiguous = neighbours(slice, batch, [&](uint32_t table) { return batch.gradients(table); });
  if (const auto at = blocks_->placeOf(contiguous)) return pushAt(*at, push, slice);
  // Does not wait for a place: slices of a later step must not overtake this one.
  if (!pushes_.hasPlace(slice.values * sizeof(float))) return messages_.push(push, slice);
  RingPlaces::Place place = pushes_.take();
  collectGradients(slice, batch, floatsAt(place.at(), slice.values));
  const uint64_t at = place.at();
  return pushAt(at, push, slice).then([place = std::move(place)](SlicePushed pushed) mutable {
    place.release();
    return pushed;
  });
}

kj::Promise<SlicePushed> RingRows::pushAt(uint64_t at, const PushRequest& push, const RowSlice& slice) {
  auto request = connection_.trainer().pushRowsSharedRequest(rowCallSize(slice, 0));
  describe(request.initHead(), push, headOf(slice));
  nameRows(request, slice, push.rows.get());
  request.setAt(at);
  return request.send().dropPipeline().then(
      [bytes = slice.values * sizeof(float)](auto answer) { return readAnswer(answer, bytes); });
}

kj::Promise<Result<SlicePulled>> RingRows::pull(uint64_t pull, const RowSlice& slice, RowBatch& batch) {
  const auto contiguous = neighbours(slice, batch, [&](uint32_t table) { return batch.rows(table); });
  if (const auto at = blocks_->placeOf(contiguous)) return pullTo(*at, slice, batch);
  if (!pulls_.hasPlace(slice.values * sizeof(float))) return messages_.pull(pull, slice, batch);
  RingPlaces::Place place = pulls_.take();
  const uint64_t at = place.at();
  return pullTo(at, slice, batch)
      .then([this, slice, &batch, place = std::move(place)](Result<SlicePulled> pulled) mutable {
        if (pulled.ok()) placeValues(floatsAt(place.at(), slice.values), slice, batch);
        place.release();
        return pulled;
      });
}

kj::Promise<Result<SlicePulled>> RingRows::pullTo(uint64_t at, const RowSlice& slice, const RowBatch& batch) {
  auto request = connection_.trainer().pullRowsSharedRequest(rowCallSize(slice, 0));
  request.setShard(slice.shard.value);
  nameRows(request, slice, &batch);
  request.setAt(at);
  return request.send().then([bytes = slice.values * sizeof(float)](
                                 capnp::Response<schema::SharedRowsResult> answer) -> Result<SlicePulled> {
    if (answer.isError()) return sanitized(wire::readError(answer.getError()));
    return SlicePulled{Version{answer.getRows().getVersion()}, bytes, answer.getRows().getKnown()};
  });
}

}  // namespace psd
