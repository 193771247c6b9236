#include "server/publish/weights_copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <thread>

#include <spdlog/fmt/fmt.h>

#include "common/checksum/crc32c.h"
#include "common/codec/codec.h"
#include "server/store/await.h"

namespace psd {
namespace {

constexpr uint64_t kPieceElements = 1u << 16;  // 256 KiB: stays in the cache

}  // namespace

Result<uint32_t> roundedChecksum(std::span<const float> values, std::string_view dtype) {
  const Codec* const codec = dtype == "F32"   ? nullptr
                             : dtype == "F16" ? codecOf(DType::f16)
                                              : codecOf(DType::bf16);
  std::vector<std::byte> encoded(kPieceElements * sizeof(float));
  uint32_t checksum = 0;
  for (uint64_t at = 0; at < values.size(); at += kPieceElements) {
    const std::span<const float> piece = values.subspan(at, std::min(kPieceElements, values.size() - at));
    if (!codec) {
      checksum = crc32c(std::as_bytes(piece), checksum);
      continue;
    }
    PSD_RETURN_IF_ERROR(codec->encode(piece, 0, encoded.data()));
    checksum = crc32c(std::span(encoded).first(codec->encodedBytes(piece.size())), checksum);
  }
  return checksum;
}

Status checkPublishedWeights(const VersionHeader& header, const ModelLayout& layout,
                             std::span<const float> weights) {
  const std::vector<TensorPlace>& places = layout.places();
  for (size_t i = 0; i < header.tensors.size(); i++) {
    const SafetensorsEntry& tensor = header.tensors[i];
    uint32_t checksum = 0;
    bool fits = i < places.size();
    if (fits) {
      PSD_ASSIGN_OR_RETURN(checksum,
                           roundedChecksum(weights.subspan(places[i].begin, places[i].count), tensor.dtype));
      fits = checksum == header.checksums[i];
    }
    if (fits) continue;
    return {ErrorCode::modelMismatch,
            fmt::format("tensor '{}' is not that of version {}", tensor.name, header.info.number)};
  }
  return {};
}

void WeightsCopy::Free::operator()(std::byte* memory) const { std::free(memory); }

WeightsCopy::WeightsCopy(std::shared_ptr<ParameterStore> store, std::optional<DType> as)
    : store_(std::move(store)) {
  model_.name = store_->model().name;
  model_.tensors = store_->model().tensors;
  for (TensorSpec& tensor : model_.tensors) tensor.dtype = as.value_or(tensor.dtype);
}

Result<std::unique_ptr<WeightsCopy>> WeightsCopy::make(std::shared_ptr<ParameterStore> store,
                                                       std::optional<DType> as) {
  std::unique_ptr<WeightsCopy> copy(new WeightsCopy(std::move(store), as));
  const uint64_t bytes = copy->store_->layout().totalElements() * sizeof(float);
  copy->memory_.reset(
      static_cast<std::byte*>(std::aligned_alloc(kLayoutGrainElements * sizeof(float), bytes)));
  if (!copy->memory_) {
    return Error{ErrorCode::overloaded,
                 fmt::format("out of memory: cannot allocate {} bytes for a copy of the weights", bytes)};
  }
  std::memset(copy->memory_.get(), 0, bytes);
  return copy;
}

Result<std::optional<WeightsCopy::Taken>> WeightsCopy::take(const CheckpointSource& source) {
  const std::vector<CheckpointSource::Group> groups = source.groups();
  const Lanes lanes = store_->makeLanes();
  kj::EventLoop loop;  // locks are awaited as promises; this thread may block
  kj::WaitScope scope(loop);
  Taken taken;
  {
    const Locks locks = lockAtRound(groups, scope, taken);
    taken.step = std::numeric_limits<uint64_t>::max();
    for (size_t i = 0; i < store_->shardCount(); i++) {
      Shard& shard = store_->shard(i);
      taken.step = std::min(taken.step, shard.version().value);
      if (taken.moment != VersionMoment::live) taken.shardVersions.push_back(shard.version().value);
      PSD_RETURN_IF_ERROR(copyShard(shard, *lanes[shard.device()]));
    }
    taken.pauseSeconds = std::max(taken.pauseSeconds, pauseOf(locks));
  }
  if (source.groups() != groups) return std::optional<Taken>();
  return std::optional(taken);
}

Status WeightsCopy::takeGroup(uint32_t group, Taken& taken) {
  const Lanes lanes = store_->makeLanes();
  kj::EventLoop loop;  // as in take()
  kj::WaitScope scope(loop);
  taken.shardVersions.resize(store_->shardCount());
  for (size_t i = 0; i < store_->shardCount(); i++) {
    Shard& shard = store_->shard(i);
    if (shard.group() != group) continue;
    const ShardLock::Guard guard = shard.lock().acquire().wait(scope);
    taken.shardVersions[i] = shard.version().value;
    PSD_RETURN_IF_ERROR(copyShard(shard, *lanes[shard.device()]));
    taken.pauseSeconds =
        std::max(taken.pauseSeconds, std::chrono::duration<double>(guard.nextWaiterDelay()).count());
  }
  return {};
}

std::set<uint32_t> WeightsCopy::groups() const {
  std::set<uint32_t> groups;
  for (size_t i = 0; i < store_->shardCount(); i++) groups.insert(store_->shard(i).group());
  return groups;
}

WeightsCopy::Locks WeightsCopy::lockAtRound(const std::vector<CheckpointSource::Group>& groups,
                                            kj::WaitScope& scope, Taken& taken) const {
  bool live = false, rounds = false;
  for (size_t i = 0; i < store_->shardCount(); i++) {
    live = live || groups[store_->shard(i).group()].live;
    rounds = rounds || groups[store_->shard(i).group()].rounds;
  }
  taken.moment = live ? VersionMoment::live : VersionMoment::snapshot;
  const bool waits = rounds && !live;
  const auto until = std::chrono::steady_clock::now() + kRoundWait;
  for (;;) {
    const bool isLast = std::chrono::steady_clock::now() >= until;
    // Looks without the locks first: updates wait only for an attempt that is likely to succeed.
    if (!waits || isLast || atSameRound(groups)) {
      Locks locks = lock(groups, scope);
      if (waits && atSameRound(groups)) taken.moment = VersionMoment::round;
      if (!waits || isLast || taken.moment == VersionMoment::round) return locks;
      taken.pauseSeconds = std::max(taken.pauseSeconds, pauseOf(locks));
    }
    std::this_thread::sleep_for(kRoundPoll);
  }
}

double WeightsCopy::pauseOf(const Locks& locks) {
  double most = 0;
  for (const ShardLock::Guard& guard : locks) {
    most = std::max(most, std::chrono::duration<double>(guard.nextWaiterDelay()).count());
  }
  return most;
}

WeightsCopy::Locks WeightsCopy::lock(const std::vector<CheckpointSource::Group>& groups,
                                     kj::WaitScope& scope) const {
  Locks locks;
  std::set<uint32_t> present;
  for (size_t i = 0; i < store_->shardCount(); i++) present.insert(store_->shard(i).group());
  for (const uint32_t group : present) {
    if (groups[group].together) locks.push_back(groups[group].together->acquire().wait(scope));
  }
  for (size_t i = 0; i < store_->shardCount(); i++) {
    Shard& shard = store_->shard(i);
    if (!groups[shard.group()].live) locks.push_back(shard.lock().acquire().wait(scope));
  }
  return locks;
}

bool WeightsCopy::atSameRound(const std::vector<CheckpointSource::Group>& groups) const {
  std::optional<Version> round;
  for (size_t i = 0; i < store_->shardCount(); i++) {
    const Shard& shard = store_->shard(i);
    if (!groups[shard.group()].rounds) continue;
    if (round && *round != shard.version()) return false;
    round = shard.version();
  }
  return true;
}

Status WeightsCopy::copyShard(Shard& shard, Lane& lane) {
  const ShardRange& range = shard.range();
  // Weights in host memory are copied in one piece: a long copy bypasses the cache.
  const uint64_t piece = shard.storage().synchronous() ? range.count : kPieceElements;
  for (uint64_t at = 0; at < range.count; at += piece) {
    const uint64_t count = std::min(piece, range.count - at);
    const auto view =
        await<Result<ReadView>>([&](auto done) { shard.storage().read(lane, at, count, done); });
    if (!view.ok()) return view.error();
    std::memcpy(elements() + range.begin + at, view->values.data(), count * sizeof(float));
  }
  return {};
}

Result<std::span<const std::byte>> WeightsCopy::convert() {
  // In place: the bytes of an element never lie behind its float32.
  std::byte* out = memory_.get();
  std::vector<std::byte> encoded(kPieceElements * sizeof(float));
  const std::vector<TensorPlace>& places = store_->layout().places();
  for (size_t i = 0; i < model_.tensors.size(); i++) {
    const Codec* const codec = codecOf(model_.tensors[i].dtype);
    for (uint64_t at = 0; at < places[i].count; at += kPieceElements) {
      const std::span<const float> values(elements() + places[i].begin + at,
                                          std::min(kPieceElements, places[i].count - at));
      uint64_t bytes = values.size_bytes();
      if (codec) {
        bytes = codec->encodedBytes(values.size());
        if (const Status fits = codec->encode(values, 0, encoded.data()); !fits.ok()) {
          return Error{fits.error().code, "tensor " + model_.tensors[i].toString() + ": " + fits.message()};
        }
      }
      std::memmove(out, codec ? static_cast<const void*>(encoded.data()) : values.data(), bytes);
      out += bytes;
    }
  }
  return std::span<const std::byte>(memory_.get(), static_cast<size_t>(out - memory_.get()));
}

}  // namespace psd
