#include "server/model/slice_checks.h"

#include <string>

#include "common/types/finite.h"

namespace psd {

Status checkSlice(const ServedModel& model, const Limits& limits, uint32_t shard, uint64_t offset,
                  uint64_t count) {
  auto bad = [&](const std::string& why) {
    return Status(ErrorCode::badSlice, "slice of " + std::to_string(count) + " elements at " +
                                           std::to_string(offset) + " of shard " + std::to_string(shard) +
                                           ": " + why);
  };
  if (shard >= model.store->shardCount()) {
    return bad("there are " + std::to_string(model.store->shardCount()) + " shards, numbered from 0");
  }
  uint64_t elements = model.store->shard(shard).range().count;
  if (count == 0 || offset > elements || count > elements - offset) {
    return bad("the shard has " + std::to_string(elements) + " elements");
  }
  if (offset % kLayoutGrainElements != 0 ||
      (count % kLayoutGrainElements != 0 && offset + count != elements)) {
    return bad("slices are cut at multiples of " + std::to_string(kLayoutGrainElements) + " elements");
  }
  if (count > limits.sliceBytes / sizeof(float)) {
    return bad("limits.slice_bytes allows " + std::to_string(limits.sliceBytes / sizeof(float)) +
               " elements");
  }
  return {};
}

Error notFinite(uint32_t shard, uint64_t offset) {
  return {ErrorCode::nonFinite, "the slice at element " + std::to_string(offset) + " of shard " +
                                    std::to_string(shard) + " holds NaN or infinity"};
}

Status checkFinite(uint32_t shard, uint64_t offset, std::span<const float> values) {
  if (allFinite(values)) return {};
  return notFinite(shard, offset);
}

Status checkGradient(uint32_t shard, uint64_t offset, const Gradient& gradient) {
  if (!gradient.codec()) return checkFinite(shard, offset, gradient.values());
  const Status status = gradient.codec()->check(gradient.bytes(), gradient.size());
  if (status.ok()) return {};
  return {status.error().code, "the slice at element " + std::to_string(offset) + " of shard " +
                                   std::to_string(shard) + ": " + status.message()};
}

Error notAgreed(std::string_view asked, const Codec* agreed) {
  return {ErrorCode::invalidArgument, "codec '" + std::string(asked) + "' was not agreed when joining, but " +
                                          (agreed ? "'" + std::string(agreed->name()) + "'" : "none")};
}

void countRefusal(DaemonMetrics& counters, const Error& error) {
  if (error.code == ErrorCode::nonFinite) counters.refusedNonFinite.add();
  if (error.code == ErrorCode::overloaded) counters.refusedOverload.add();
  if (error.code == ErrorCode::badSlice) counters.refusedSlices.add();
}

}  // namespace psd
