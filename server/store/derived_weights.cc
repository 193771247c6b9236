#include "server/store/derived_weights.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "server/optimizer/option_text.h"
#include "server/store/await.h"
#include "server/store/rows/row_squares.h"

namespace psd {
namespace {

constexpr uint64_t kPieceElements = 1u << 20;

/// Calls `tensors(step)` for an optimizer of single elements, or `rows(step)` for one of whole rows.
template <class OfElements, class OfRows>
void visitDeriving(const Optimizer& optimizer, const OfElements& ofElements, const OfRows& ofRows) {
  const UpdateScalars update{.learningRate = optimizer.fullLearningRate};
  optimizer.visitStep(update, [&]<class Step>(const Step& step) {
    if constexpr (kDerivingStep<Step>) ofElements(step);
  });
  optimizer.visitRowStep(update, [&]<class Step>(const Step& step) {
    if constexpr (kDerivingStep<Step>) ofRows(step);
  });
}

/// Σ of(i)², added in the order of the loops over rows.
template <class Of>
float squareSum(uint32_t count, const Of& of) {
  float sums[kSquareLanes] = {};
  for (uint32_t i = 0; i < count; ++i) sums[i % kSquareLanes] += of(i) * of(i);
  addSquareLanes(sums);
  return sums[0];
}

/// A row of `planes`.
struct Row {
  std::span<float> w, z, n;

  Row(Planes planes, size_t begin, uint32_t dim)
      : w(planes[0].subspan(begin, dim)),
        z(planes[1].subspan(begin, dim)),
        n(planes[2].subspan(begin, dim)) {}
};

/// Calls `derive(optimizer, 1, planes)` for pieces of the elements, and writes the planes back.
template <class Derive>
Status updatePlanes(const Optimizer& optimizer, Shard& shard, Lane& lane, uint64_t offset, uint64_t count,
                    const Derive& derive) {
  if (!optimizer.derivesWeights()) return {};
  ShardStorage& storage = shard.storage();
  std::vector<std::vector<float>> planes(1 + optimizer.slotCount());
  for (const uint64_t end = offset + count; offset < end; offset += planes[0].size()) {
    const uint64_t some = std::min(kPieceElements, end - offset);
    for (size_t i = 0; i < planes.size(); i++) {
      PSD_ASSIGN_OR_RETURN(const ReadView view, await<Result<ReadView>>([&](auto done) {
                             if (i == 0) return storage.read(lane, offset, some, done);
                             storage.readSlot(lane, static_cast<uint32_t>(i - 1), offset, some, done);
                           }));
      planes[i].assign(view.values.begin(), view.values.end());
    }
    derive(optimizer, 1, std::vector<std::span<float>>(planes.begin(), planes.end()));
    for (size_t i = 0; i < planes.size(); i++) {
      PSD_RETURN_IF_ERROR(await<Status>([&](auto done) {
        if (i == 0) return storage.write(lane, offset, planes[i], done);
        storage.writeSlot(lane, static_cast<uint32_t>(i - 1), offset, planes[i], done);
      }));
    }
  }
  return {};
}

}  // namespace

void deriveWeights(const Optimizer& optimizer, uint32_t dim, Planes planes) {
  const auto ofElements = [&](const auto& step) {
    for (size_t i = 0; i < planes[0].size(); i++) {
      const float slots[] = {planes[1][i], planes[2][i]};
      planes[0][i] = step.weight(slots);
    }
  };
  const auto ofRows = [&](const auto& step) {
    for (size_t begin = 0; begin < planes[0].size(); begin += dim) {
      const Row row(planes, begin, dim);
      const float factor =
          step.factor(squareSum(dim, [&](uint32_t i) { return step.shrunk(row.z[i]); }), dim);
      for (uint32_t i = 0; i < dim; i++) row.w[i] = step.weight(row.z[i], row.n[i], factor);
    }
  };
  visitDeriving(optimizer, ofElements, ofRows);
}

void deriveState(const Optimizer& optimizer, uint32_t dim, Planes planes) {
  const auto ofElements = [&](const auto& step) {
    for (size_t i = 0; i < planes[0].size(); i++) planes[1][i] = step.z(planes[0][i], planes[2][i]);
  };
  const auto ofRows = [&](const auto& step) {
    for (size_t begin = 0; begin < planes[0].size(); begin += dim) {
      const Row row(planes, begin, dim);
      const auto scaled = [&](uint32_t i) { return row.w[i] * step.divisor(row.n[i]); };
      const float factor = step.factorOfWeights(squareSum(dim, scaled), dim);
      for (uint32_t i = 0; i < dim; i++) row.z[i] = step.z(row.w[i], row.n[i], factor);
    }
  };
  visitDeriving(optimizer, ofElements, ofRows);
  deriveWeights(optimizer, dim, planes);
}

Status deriveShardWeights(const Optimizer& optimizer, Shard& shard, Lane& lane, uint64_t offset,
                          uint64_t count) {
  return updatePlanes(optimizer, shard, lane, offset, count, deriveWeights);
}

Status deriveShardState(const Optimizer& optimizer, Shard& shard, Lane& lane, uint64_t offset,
                        uint64_t count) {
  return updatePlanes(optimizer, shard, lane, offset, count, deriveState);
}

Status deriveStoreState(ParameterStore& store) {
  Lanes lanes;
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    if (!store.optimizerOf(shard).derivesWeights()) continue;
    if (lanes.empty()) lanes = store.makeLanes();
    PSD_RETURN_IF_ERROR(
        deriveShardState(store.optimizerOf(shard), shard, *lanes[shard.device()], 0, shard.range().count));
  }
  return {};
}

Status checkRateOfState(const Optimizer& before, const Optimizer& optimizer) {
  if (!optimizer.derivesWeights() || before.fullLearningRate == optimizer.fullLearningRate) return {};
  return {
      ErrorCode::invalidArgument,
      fmt::format("the saved state of optimizer '{}' holds for lr {}, and the configuration has {}: set lr "
                  "to {}",
                  before.name(), numberText(before.fullLearningRate), numberText(optimizer.fullLearningRate),
                  numberText(before.fullLearningRate))};
}

}  // namespace psd
