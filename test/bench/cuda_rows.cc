#include "test/bench/cuda_rows.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <span>

#include "server/store/backend.h"

namespace psd::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// A storage with the rows 0 … count − 1.
Result<std::unique_ptr<RowStorage>> makeRows(Backend& backend, uint32_t dim, const Optimizer& optimizer,
                                             uint64_t count) {
  PSD_ASSIGN_OR_RETURN(auto storage, backend.makeRowStorage(dim, optimizer));
  const uint64_t each = storage->layout().rowsPerChunk();
  for (uint32_t chunk = 0; chunk * each < count; ++chunk) PSD_RETURN_IF_ERROR(storage->open(chunk, true));
  std::vector<uint32_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0u);
  const std::vector<uint64_t> ids(rows.begin(), rows.end());
  storage->create(rows, ids, {});
  PSD_RETURN_IF_ERROR(storage->state());
  return storage;
}

/// The median of the rounds' times after one warm-up round; each round has rows of its own.
template <class Call>
double medianOf(const RowWork& work, const Call& call) {
  std::mt19937_64 random(1);
  std::vector<uint32_t> rows(work.batch);
  std::vector<double> times;
  for (uint32_t round = 0; round <= work.rounds; ++round) {
    for (uint32_t& row : rows) row = static_cast<uint32_t>(random() % work.rows);
    const Clock::time_point start = Clock::now();
    call(rows);
    if (round > 0) times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// Calls use(first, rows, next) with as many rows at a time as the storage accepts.
template <class Use>
void eachBatch(const RowStorage& storage, RowStorage::Rows rows, const Use& use) {
  const size_t most = storage.batchRows();
  const auto from = [&](size_t first) {
    return first < rows.size() ? rows.subspan(first, std::min(most, rows.size() - first))
                               : RowStorage::Rows();
  };
  for (size_t first = 0; first < rows.size(); first += most) use(first, from(first), from(first + most));
}

}  // namespace

Result<std::vector<RowTiming>> timeRows(int device, const RowWork& work) {
  PSD_ASSIGN_OR_RETURN(const auto backend, makeCudaBackend(device));
  const auto host = makeCpuBackend();
  std::vector<RowTiming> timings;
  for (const uint32_t dim : work.dims) {
    std::vector<float> values(work.batch * dim, 0.01f);
    bool gathered = false;  // it does not depend on the optimizer
    for (const Optimizer& optimizer : {Optimizer{Sgd{}, 0.01, {}}, Optimizer{Adagrad{}, 0.01, {}},
                                       Optimizer{RowwiseAdagrad{}, 0.01, {}}}) {
      PSD_ASSIGN_OR_RETURN(const auto there, makeRows(*backend, dim, optimizer, work.rows));
      PSD_ASSIGN_OR_RETURN(const auto here, makeRows(*host, dim, optimizer, work.rows));
      const auto gather = [&](RowStorage& storage) {
        return medianOf(work, [&](RowStorage::Rows all) {
          eachBatch(storage, all, [&](size_t first, RowStorage::Rows rows, RowStorage::Rows next) {
            storage.gather(rows, std::span(values).subspan(first * dim, rows.size() * dim), next);
          });
        });
      };
      const auto apply = [&](RowStorage& storage) {
        const RowUpdate update{{1, 0.01, 0}, {}, {}};
        return medianOf(work, [&](RowStorage::Rows all) {
          eachBatch(storage, all, [&](size_t first, RowStorage::Rows rows, RowStorage::Rows next) {
            storage.apply(rows, std::span(values).subspan(first * dim, rows.size() * dim), update, next);
          });
        });
      };
      if (!gathered) timings.push_back({"gather", dim, work.batch, gather(*there), gather(*here)});
      gathered = true;
      timings.push_back({std::string(optimizer.name()), dim, work.batch, apply(*there), apply(*here)});
      PSD_RETURN_IF_ERROR(there->state());
    }
  }
  return timings;
}

}  // namespace psd::bench
