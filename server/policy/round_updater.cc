#include "server/policy/round_updater.h"

#include <algorithm>
#include <cmath>

#include "server/policy/merged_rows.h"
#include "server/policy/store_promise.h"
#include "server/store/squared_norm.h"

namespace psd {
namespace {

double fullWeightOf(const RoundPart& part, RoundWeights weights) {
  const double samples = part.samples;
  switch (weights) {
    case RoundWeights::samples: return samples;
    case RoundWeights::equal: return 1;
    case RoundWeights::samples2PerStep: return samples * samples / std::max(part.localSteps, 1u);
  }
  return samples;
}

double weightOf(const RoundPart& part, RoundWeights weights, double lateRate) {
  const double full = fullWeightOf(part, weights);
  return part.late == 0 ? full : full * std::pow(lateRate, static_cast<double>(part.late));
}

/// The hyperparameters of a round's update of a block: those of a part that is not late, if there is one.
std::shared_ptr<const Hyperparameters> hyperparametersOf(const std::vector<std::shared_ptr<RoundPart>>& round,
                                                         size_t block) {
  const auto timely = std::ranges::find_if(round, [](const auto& part) { return part->late == 0; });
  return (timely == round.end() ? round.front() : *timely)->hyperparameters[block];
}

}  // namespace

RoundUpdater::RoundUpdater(const PolicyScope& scope, const RoundOptions& options)
    : aggregator_(options.aggregator),
      weights_(options.weights),
      lateRate_(options.lateRate.value_or(1)),
      clip_(options.clip),
      shards_(scope.shards()),
      rowShards_(scope.rowShards()),
      tensors_(aggregator_->byTensor() ? piecesOf(scope, shards_) : std::vector<TensorPieces>()),
      blocks_(shards_.begin(), shards_.end()),
      lanes_(scope.store.makeLanes()) {
  blocks_.insert(blocks_.end(), rowShards_.begin(), rowShards_.end());
}

kj::Promise<RoundUpdater::Outcome> RoundUpdater::apply(Round round, std::vector<int64_t> first) {
  auto work = std::make_shared<Work>();
  work->round = std::move(round);
  work->first = std::move(first);
  return combine(work).then([this, work](Status status) -> kj::Promise<Outcome> {
    if (!status.ok()) return Outcome{status.error()};
    return createRows(work, 0).then([this, work](Status status) -> kj::Promise<Outcome> {
      if (!status.ok()) return Outcome{status.error()};
      return applyBlocks(work, 0);
    });
  });
}

// --- Combining the gradients -------------------------------------------------------------------------

RoundUpdater::Gradients RoundUpdater::gradientsOf(const Work& work, size_t shard) {
  auto gradients = std::make_shared<std::vector<StagedGradient>>();
  for (const auto& part : *work.round) gradients->push_back(part->shards[shard]);
  return gradients;
}

kj::Promise<void> RoundUpdater::mergeRowsOf(WorkPtr work) const {
  const size_t next = work->rows.size();
  if (next == rowShards_.size()) return kj::READY_NOW;
  std::vector<StagedRows> parts;
  for (const auto& part : *work->round) parts.push_back(part->rows[next]);
  work->rows.push_back(mergeRows(*rowShards_[next], parts, work->combination.weights));
  return kj::evalLater([this, work] { return mergeRowsOf(work); });
}

kj::Promise<Status> RoundUpdater::combine(WorkPtr work) {
  auto combine = [this, work](Result<SquaredDistances> distances) -> kj::Promise<Status> {
    if (!distances.ok()) return Status(distances.error());
    for (const auto& part : *work->round) work->weights.push_back(weightOf(*part, weights_, lateRate_));
    work->combination = aggregator_->combine(work->weights, *distances);
    if (!tensors_.empty()) work->ofShards.resize(shards_.size(), work->combination);
    return weighTensors(work, 0).then([this, work](Status status) -> kj::Promise<Status> {
      if (!status.ok()) return status;
      return mergeRowsOf(work).then([this, work] { return clip(work); });
    });
  };
  if (!aggregator_->needsDistances()) return combine(SquaredDistances());
  return addDistances(work, SquaredDistances(work->round->size()), 0).then(kj::mv(combine));
}

std::vector<RoundUpdater::TensorPieces> RoundUpdater::piecesOf(const PolicyScope& scope,
                                                               const std::vector<Shard*>& shards) {
  const std::vector<TensorPlace>& places = scope.store.layout().places();
  const uint64_t total = scope.store.layout().totalElements();
  std::vector<TensorPieces> found;
  for (size_t tensor = 0; tensor < places.size(); tensor++) {
    const uint64_t begin = places[tensor].begin, end = begin + places[tensor].count;
    const uint64_t next = tensor + 1 < places.size() ? places[tensor + 1].begin : total;
    TensorPieces pieces{scope.store.model().tensors[tensor].name, {}};
    for (size_t shard = 0; shard < shards.size(); shard++) {
      const ShardRange& range = shards[shard]->range();
      const uint64_t from = std::max(begin, range.begin), to = std::min(next, range.begin + range.count);
      if (from >= to) continue;
      const uint64_t count = std::min(std::max(from, end), to) - from;
      pieces.pieces.push_back({shard, from - range.begin, count, to - from - count});
    }
    if (!pieces.pieces.empty()) found.push_back(std::move(pieces));
  }
  return found;
}

kj::Promise<Status> RoundUpdater::weighTensors(WorkPtr work, size_t next) {
  if (next == tensors_.size()) return Status();
  const TensorPieces& tensor = tensors_[next];
  const bool looks = aggregator_->needsProducts(tensor.name);
  auto products = looks ? addProducts(work, tensor, InnerProducts(work->round->size()), 0)
                        : kj::Promise<Result<InnerProducts>>(Result<InnerProducts>(InnerProducts()));
  return products.then([this, work, next](Result<InnerProducts> products) -> kj::Promise<Status> {
    if (!products.ok()) return products.status();
    const TensorPieces& tensor = tensors_[next];
    const std::vector<float> weights = aggregator_->weigh(tensor.name, work->weights, *products);
    for (const Piece& piece : tensor.pieces) {
      work->ofShards[piece.shard].ranges.push_back({piece.begin, piece.count + piece.padding, weights});
    }
    return weighTensors(work, next + 1);
  });
}

kj::Promise<Result<InnerProducts>> RoundUpdater::addProducts(WorkPtr work, const TensorPieces& tensor,
                                                             InnerProducts sums, size_t next) {
  if (next == tensor.pieces.size()) return Result<InnerProducts>(std::move(sums));
  const Piece& piece = tensor.pieces[next];
  Shard& shard = *shards_[piece.shard];
  auto gradients = gradientsOf(*work, piece.shard);
  return storePromise<Result<InnerProducts>>(shard,
                                             [&](ShardStorage::ProductsDone done) {
                                               shard.storage().addProducts(
                                                   *lanes_[shard.device()], *gradients, piece.begin,
                                                   piece.count, std::move(sums), std::move(done));
                                             })
      .then([this, work, gradients, &tensor,
             next](Result<InnerProducts> more) -> kj::Promise<Result<InnerProducts>> {
        if (!more.ok()) return more;
        return addProducts(work, tensor, *std::move(more), next + 1);
      });
}

kj::Promise<Status> RoundUpdater::clip(WorkPtr work) {
  const auto change = [work](const auto& what) {
    what(work->combination.change);
    for (Combination& each : work->ofShards) what(each.change);
  };
  if (clip_.value) change([this](GradientChange& one) { one.limit = static_cast<float>(*clip_.value); });
  if (!clip_.norm) return Status();
  double square = 0;
  for (const StagedRows& rows : work->rows) square += squaredNorm(rows.gradients);
  return addSquares(work, square, 0).then([this, change](Result<double> square) -> Status {
    if (!square.ok()) return square.status();
    const auto scale = static_cast<float>(clip_.scale(*square));
    change([scale](GradientChange& one) { one.scale = scale; });
    return {};
  });
}

kj::Promise<Result<SquaredDistances>> RoundUpdater::addDistances(WorkPtr work, SquaredDistances sum,
                                                                 size_t next) {
  if (next == shards_.size()) return Result<SquaredDistances>(std::move(sum));
  Shard& shard = *shards_[next];
  auto gradients = gradientsOf(*work, next);
  return storePromise<Result<SquaredDistances>>(shard,
                                                [&](ShardStorage::DistancesDone done) {
                                                  shard.storage().squaredDistances(
                                                      *lanes_[shard.device()], *gradients, std::move(done));
                                                })
      .then([this, work, gradients, sum = std::move(sum),
             next](Result<SquaredDistances> part) mutable -> kj::Promise<Result<SquaredDistances>> {
        if (!part.ok()) return part;
        sum += *part;
        return addDistances(work, std::move(sum), next + 1);
      });
}

kj::Promise<Result<double>> RoundUpdater::addSquares(WorkPtr work, double sum, size_t next) {
  if (next == shards_.size()) return Result<double>(sum);
  Shard& shard = *shards_[next];
  auto gradients = gradientsOf(*work, next);
  return storePromise<Result<double>>(shard,
                                      [&](ShardStorage::SquareDone done) {
                                        shard.storage().combinedSquare(*lanes_[shard.device()], *gradients,
                                                                       combinationIn(*work, next),
                                                                       std::move(done));
                                      })
      .then([this, work, gradients, sum, next](Result<double> part) -> kj::Promise<Result<double>> {
        if (!part.ok()) return part;
        return addSquares(work, sum + *part, next + 1);
      });
}

// --- New rows ----------------------------------------------------------------------------------------

kj::Promise<Status> RoundUpdater::createRows(WorkPtr work, size_t next) {
  if (next == rowShards_.size()) return Status();
  RowShard& shard = *rowShards_[next];
  using Prepared = Result<PreparedRows>;
  return shard.lock()
      .acquire()
      .then([&shard, work, next](ShardLock::Guard) -> Prepared {
        const Version version{shard.version().value + 1};
        shard.turnover().evictDue(version.value, work->rows[next].rows);
        return shard.turnover().prepare(work->rows[next], version);
      })
      .then([this, work, next](Prepared prepared) -> kj::Promise<Status> {
        if (!prepared.ok()) {
          return removeCreatedRows(work).then([status = prepared.status()] { return status; });
        }
        work->prepared.push_back(*std::move(prepared));
        return createRows(work, next + 1);
      });
}

kj::Promise<void> RoundUpdater::removeCreatedRows(WorkPtr work) {
  if (work->prepared.empty()) return kj::READY_NOW;
  RowShard& shard = *rowShards_[work->prepared.size() - 1];
  return shard.lock().acquire().then([this, &shard, work](ShardLock::Guard) {
    // Rows that cannot be removed for lack of memory keep their initial values, which has the same effect.
    static_cast<void>(shard.turnover().rollBack(work->prepared.back().created));
    work->prepared.pop_back();
    return removeCreatedRows(work);
  });
}

// --- The update of each block ------------------------------------------------------------------------

uint64_t RoundUpdater::bytesToLog(const Work& work, size_t index) const {
  const auto carried = hyperparametersOf(*work.round, index);
  const uint64_t besides = carried ? carried->bytes() : 0;
  if (index < shards_.size()) return blocks_[index]->range().count * sizeof(float) + besides;
  return work.rows[index - shards_.size()].bytes() + besides;
}

kj::Promise<RoundUpdater::Outcome> RoundUpdater::applyBlocks(WorkPtr work, size_t next) {
  ParameterBlock& block = *blocks_[next];
  return block.reserveLogSpace(bytesToLog(*work, next))
      .then([this, &block, work, next](ByteBudget::Lease space) {
        return block.lock().acquire().then(
            [this, &block, work, next, space = std::move(space)](ShardLock::Guard guard) mutable {
              return applyBlock(work, next, std::move(space))
                  .then([&block, guard = kj::mv(guard)](Status status) {
                    return status.ok() ? Result<uint64_t>(block.logged()) : Result<uint64_t>(status.error());
                  });
            });
      })
      .then([this, work, next](Result<uint64_t> logged) -> kj::Promise<Outcome> {
        if (!logged.ok()) return Outcome{logged.error(), next};
        if (next + 1 == blocks_.size()) return Outcome{*logged, blocks_.size()};
        return applyBlocks(work, next + 1);
      });
}

kj::Promise<Status> RoundUpdater::applyBlock(WorkPtr work, size_t index, ByteBudget::Lease space) {
  ParameterBlock& block = *blocks_[index];
  const UpdateScalars scalars =
      block.scalars(block.beginExclusiveUpdate(), 1, hyperparametersOf(*work->round, index));
  if (index >= shards_.size()) return updateRowsOf(*work, index, scalars, std::move(space));
  if (!block.logs()) return update(work, index, scalars);
  return updateLogged(work, index, scalars, std::move(space));
}

kj::Promise<Status> RoundUpdater::update(WorkPtr work, size_t index, const UpdateScalars& scalars) {
  Shard& shard = *shards_[index];
  auto gradients = gradientsOf(*work, index);
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().applyCombined(*lanes_[shard.device()], *gradients,
                                                              combinationIn(*work, index), scalars,
                                                              std::move(done));
                              })
      .then([this, index, work, gradients, scalars](Status status) {
        if (status.ok()) endUpdate(*work, index, {scalars, std::span<const float>(), {}}, {});
        return status;
      });
}

kj::Promise<Status> RoundUpdater::updateLogged(WorkPtr work, size_t index, const UpdateScalars& scalars,
                                               ByteBudget::Lease space) {
  Shard& shard = *shards_[index];
  auto gradients = gradientsOf(*work, index);
  return storePromise<Result<ReadView>>(shard,
                                        [&](ShardStorage::ReadDone done) {
                                          shard.storage().combine(*lanes_[shard.device()], *gradients,
                                                                  combinationIn(*work, index),
                                                                  std::move(done));
                                        })
      .then([this, &shard, gradients, scalars, work, index,
             space = std::move(space)](Result<ReadView> combined) mutable -> kj::Promise<Status> {
        if (!combined.ok()) return combined.status();
        const Gradient gradient = combined->values;
        return storePromise<Status>(shard,
                                    [&](ShardStorage::Done done) {
                                      shard.storage().apply(*lanes_[shard.device()], 0, gradient, scalars,
                                                            std::move(done));
                                    })
            .then([this, index, work, scalars, gradient, owner = std::move(combined->owner),
                   space = std::move(space)](Status status) mutable {
              if (!status.ok()) return status;
              endUpdate(*work, index, {.scalars = scalars, .gradient = gradient, .owner = std::move(owner)},
                        std::move(space));
              return status;
            });
      });
}

Status RoundUpdater::updateRowsOf(Work& work, size_t index, const UpdateScalars& scalars,
                                  ByteBudget::Lease space) {
  PreparedRows& prepared = work.prepared[index - shards_.size()];
  const RowChange change{.scale = work.combination.change.scale, .limit = work.combination.change.limit};
  RowShard& shard = *rowShards_[index - shards_.size()];
  PSD_RETURN_IF_ERROR(shard.update(prepared, change, scalars, Version{scalars.number}));
  endUpdate(work, index,
            {.scalars = scalars,
             .gradient = prepared.part.gradients,
             .rows = prepared.part.rows,
             .beside = prepared.beside()},
            std::move(space));
  return {};
}

void RoundUpdater::endUpdate(const Work& work, size_t index, AppliedUpdate update, ByteBudget::Lease space) {
  std::vector<UpdateSource> sources;
  for (const auto& part : *work.round) {
    const TrainerRef& trainer = part->trainer;
    const Version basis{static_cast<uint64_t>(work.first[index]) + *part->round};
    sources.push_back({trainer.rank, part->samples, trainer.incarnation, part->step, basis, part->late});
    if (!part->shares) continue;
    for (const TrainerProcess& other : *part->shares) {
      sources.push_back({other.rank, 0, other.incarnation, {}, basis, part->late});
    }
  }
  update.sources = sources;
  if (blocks_.size() > 1) update.part = index + 1 < blocks_.size() ? UpdatePart::continues : UpdatePart::last;
  blocks_[index]->endUpdate(update, std::move(space));
}

}  // namespace psd
