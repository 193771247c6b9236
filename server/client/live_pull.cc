#include "server/client/live_pull.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/codec/codec.h"
#include "common/types/model_layout.h"
#include "common/wire/buffers.h"
#include "common/wire/convert.h"

namespace psd {
namespace {

constexpr size_t kSlicesUnderWay = 4;
constexpr uint64_t kSliceElements = 256 << 10;

/// Pulls slices into a LiveModel. Belongs to one event loop.
class LivePull {
 public:
  explicit LivePull(LiveModel& model) : model_(model) {}

  kj::Promise<Status> run(schema::Reading::Client reading) {
    return reading.observeRequest().send().then(
        [this](capnp::Response<schema::ObserveResult> answer) -> kj::Promise<Status> {
          if (answer.isError()) return Status(wire::readError(answer.getError()));
          auto observing = answer.getObserving();
          if (Status begun = begin(observing); !begun.ok()) return begun;
          reader_ = observing.getReader();
          auto lines = kj::heapArrayBuilder<kj::Promise<void>>(kSlicesUnderWay);
          for (size_t i = 0; i < kSlicesUnderWay; i++) lines.add(pullOn());
          return kj::joinPromises(lines.finish()).then([this]() -> kj::Promise<Status> {
            if (!outcome_.ok()) return outcome_;
            return wire::pullBuffers(reader_).then([this](Result<std::vector<std::byte>> file) -> Status {
              if (!file.ok()) return file.error();
              if (file->empty()) return {};
              PSD_ASSIGN_OR_RETURN(model_.buffers, BufferSet::parse(*std::move(file)));
              return {};
            });
          });
        });
  }

 private:
  struct Piece {
    uint32_t shard = 0;
    DType dtype = DType::f32;
    uint64_t offset = 0, count = 0, at = 0;  // `at`: offset in the arena
  };

  Status begin(schema::ObserveResult::Observing::Reader observing) {
    PSD_ASSIGN_OR_RETURN(model_.spec, wire::readModel(observing.getModel()));
    const uint64_t total = ModelLayout(model_.spec).totalElements();
    const auto access = observing.getAccess();
    const uint64_t most = std::min(kSliceElements, access.getSliceElementsMax());
    if (most == 0) return {ErrorCode::protocolMismatch, "the daemon sends no slices"};
    model_.values.resize(total);
    PSD_ASSIGN_OR_RETURN(ShardPlan plan, wire::readPlan(access.getShards()));
    if (plan.totalElements() != total) {
      return {ErrorCode::protocolMismatch, "the daemon's shards do not fit its model"};
    }
    PSD_RETURN_IF_ERROR(plan.readDtypes(model_.spec));
    for (const ShardRange& shard : plan.shards) {
      for (uint64_t offset = 0; offset < shard.count; offset += most) {
        pieces_.push_back({shard.id.value, shard.dtype, offset, std::min(most, shard.count - offset),
                           shard.begin + offset});
      }
    }
    return {};
  }

  kj::Promise<void> pullOn() {
    if (!outcome_.ok() || next_ == pieces_.size()) return kj::READY_NOW;
    const Piece piece = pieces_[next_++];
    auto request = reader_.pullRequest();
    request.setPull(1);
    request.setShard(piece.shard);
    request.setOffset(piece.offset);
    request.setCount(piece.count);
    return request.send().then(
        [this, piece](capnp::Response<schema::PullResult> answer) -> kj::Promise<void> {
          if (Status taken = take(piece, answer); !taken.ok() && outcome_.ok()) outcome_ = std::move(taken);
          return pullOn();
        });
  }

  Status take(const Piece& piece, schema::PullResult::Reader answer) {
    if (answer.isError()) return wire::readError(answer.getError());
    const auto bytes = wire::bytesIn(answer.getSlice().getValues());
    if (bytes.size() != piece.count * dtypeBytes(piece.dtype)) {
      return {ErrorCode::protocolMismatch, "a slice has the wrong length"};
    }
    const std::span<float> values(model_.values.data() + piece.at, piece.count);
    if (const Codec* const codec = codecOf(piece.dtype)) {
      codec->decode(bytes, piece.count, 0, values);
    } else {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    return {};
  }

  LiveModel& model_;
  schema::Reader::Client reader_ = nullptr;
  std::vector<Piece> pieces_;
  size_t next_ = 0;
  Status outcome_;
};

}  // namespace

kj::Promise<Result<LiveModel>> pullLiveModel(schema::Reading::Client reading) {
  auto model = kj::heap<LiveModel>();
  auto pull = kj::heap<LivePull>(*model);
  auto pulled = pull->run(kj::mv(reading));
  return pulled.attach(kj::mv(pull))
      .then([model = kj::mv(model)](const Status& status) mutable -> Result<LiveModel> {
        if (!status.ok()) return status.error();
        return std::move(*model);
      });
}

}  // namespace psd
