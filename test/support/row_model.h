#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "server/store/rows/row_table.h"
#include "test/support/catch.h"
#include "test/support/test_device.h"

namespace psd::testing {

/// The expected content of a RowTable of one optimizer, from a std::map and the step functors alone. Owned by
/// one thread.
class RowModel {
 public:
  struct Row {
    std::vector<std::vector<float>> planes;
    RowMeta meta;
  };

  RowModel(uint32_t dim, const RowInitial& initial, const Optimizer& optimizer)
      : dim_(dim), initial_(initial), optimizer_(optimizer) {}

  const std::map<uint64_t, Row>& rows() const { return rows_; }

  uint64_t insertMissing(std::span<const uint64_t> ids, Version version) {
    uint64_t made = 0;
    for (const uint64_t id : ids) {
      if (rows_.contains(id)) continue;
      rows_.emplace(id, Row{startOf(id), RowMeta::of(version.value, 0)});
      ++made;
    }
    return made;
  }

  uint64_t apply(std::span<const uint64_t> ids, std::span<const float> gradients, const RowChange& change,
                 UpdateScalars update, bool rowSteps, Version version) {
    uint64_t known = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto found = rows_.find(ids[i]);
      if (found == rows_.end()) continue;
      Row& row = found->second;
      ++known;
      if (rowSteps) update = {row.meta.count() + 1, update.learningRate, 0};
      row.meta = row.meta.updated(version.value);
      step(row, changed(gradients.subspan(i * dim_, dim_), change), update);
    }
    return known;
  }

  uint64_t erase(std::span<const uint64_t> ids) {
    uint64_t gone = 0;
    for (const uint64_t id : ids) gone += rows_.erase(id);
    return gone;
  }

  uint64_t gather(std::span<const uint64_t> ids, std::vector<float>& out) const {
    uint64_t known = 0;
    out.clear();
    for (const uint64_t id : ids) {
      const auto found = rows_.find(id);
      known += found != rows_.end();
      const std::vector<float> values = found == rows_.end() ? startOf(id)[0] : found->second.planes[0];
      out.insert(out.end(), values.begin(), values.end());
    }
    return known;
  }

 private:
  std::vector<std::vector<float>> startOf(uint64_t id) const {
    std::vector<std::vector<float>> planes{std::vector<float>(dim_)};
    initial_.fill(id, planes[0]);
    for (const Slot& slot : optimizer_.slots()) {
      planes.emplace_back(slot.perRow ? 1 : dim_, slot.initialValue);
    }
    return planes;
  }

  /// ‖g‖² or a mean in the order in which the loops add: 16 sums, reduced pairwise.
  static float squareSum(const std::vector<float>& values) {
    float sums[16] = {};
    for (size_t i = 0; i < values.size(); ++i) sums[i % 16] += values[i] * values[i];
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    }
    return sums[0];
  }

  static std::vector<float> changed(std::span<const float> gradient, const RowChange& change) {
    std::vector<float> g(gradient.begin(), gradient.end());
    for (float& value : g) value = std::clamp(value * change.scale, -change.limit, change.limit);
    const float norm = std::sqrt(squareSum(g));
    if (norm > change.rowNorm) {
      const float factor = change.rowNorm / norm;
      for (float& value : g) value *= factor;
    }
    return g;
  }

  void step(Row& row, const std::vector<float>& g, const UpdateScalars& update) const {
    std::vector<float>& w = row.planes[0];
    optimizer_.visitStep(update, [&](const auto& functor) {
      std::vector<float> slots(row.planes.size());
      for (size_t i = 0; i < w.size(); ++i) {
        for (size_t s = 1; s < row.planes.size(); ++s) slots[s - 1] = row.planes[s][i];
        functor(w[i], g[i], slots.data());
        for (size_t s = 1; s < row.planes.size(); ++s) row.planes[s][i] = slots[s - 1];
      }
    });
    optimizer_.visitRowStep(update, [&]<class Step>(const Step& functor) {
      if constexpr (kDerivingStep<Step>) {
        stepDerived(functor, row, g);
      } else {
        std::vector<float> decayed(w.size());
        for (size_t i = 0; i < w.size(); ++i) decayed[i] = functor.gradient(w[i], g[i]);
        const float factor =
            functor.factor(squareSum(decayed) / static_cast<float>(w.size()), row.planes[1][0]);
        for (size_t i = 0; i < w.size(); ++i) w[i] -= factor * decayed[i];
      }
    });
  }

  template <class Step>
  static void stepDerived(const Step& functor, Row& row, const std::vector<float>& g) {
    std::vector<float>&w = row.planes[0], &z = row.planes[1], &n = row.planes[2];
    const auto factor = [&] {
      std::vector<float> shrunk(z.size());
      for (size_t i = 0; i < z.size(); ++i) shrunk[i] = functor.shrunk(z[i]);
      return functor.factor(squareSum(shrunk), static_cast<uint32_t>(z.size()));
    };
    const float before = factor();
    for (size_t i = 0; i < w.size(); ++i) functor.add(functor.weight(z[i], n[i], before), g[i], z[i], n[i]);
    const float after = factor();
    for (size_t i = 0; i < w.size(); ++i) w[i] = functor.weight(z[i], n[i], after);
  }

  const uint32_t dim_;
  const RowInitial initial_;
  const Optimizer optimizer_;
  std::map<uint64_t, Row> rows_;
};

inline std::unique_ptr<RowTable> makeTableOn(Backend& device, uint32_t dim, const Optimizer& optimizer,
                                             const RowTable::Options& options = {}) {
  auto storage = device.makeRowStorage(dim, optimizer);
  PSD_REQUIRE_OK(storage);
  return std::make_unique<RowTable>(options, *std::move(storage), std::make_shared<Epochs>());
}

inline std::unique_ptr<RowTable> makeTable(uint32_t dim, const Optimizer& optimizer = {},
                                           const RowTable::Options& options = {}) {
  return makeTableOn(*testBackend(), dim, optimizer, options);
}

/// All rows of a table with all planes, read by iteration.
inline std::map<uint64_t, RowModel::Row> contentOf(const RowTable& table) {
  std::map<uint64_t, RowModel::Row> content;
  RowCursor cursor;
  std::vector<RowEntry> entries;
  for (table.next(cursor, entries); !entries.empty(); table.next(cursor, entries)) {
    std::vector<uint32_t> rows;
    for (const RowEntry& entry : entries) {
      rows.push_back(entry.row);
      REQUIRE(content.emplace(entry.id, RowModel::Row{{}, table.meta(entry.row)}).second);
    }
    for (uint32_t plane = 0; plane < table.layout().planeCount(); ++plane) {
      const uint32_t width = table.layout().width(plane);
      std::vector<float> values(rows.size() * width);
      table.readPlane(plane, rows, values);
      for (size_t i = 0; i < entries.size(); ++i) {
        const auto* const begin = values.data() + i * width;
        content.at(entries[i].id).planes.emplace_back(begin, begin + width);
      }
    }
  }
  PSD_REQUIRE_OK(table.state());
  return content;
}

inline void requireEqual(const RowTable& table, const std::map<uint64_t, RowModel::Row>& expected) {
  const auto content = contentOf(table);
  REQUIRE(content.size() == expected.size());
  REQUIRE(table.size().rows == expected.size());
  for (const auto& [id, row] : expected) {
    const auto found = content.find(id);
    REQUIRE(found != content.end());
    REQUIRE(found->second.meta == row.meta);
    REQUIRE(found->second.planes == row.planes);
  }
}

}  // namespace psd::testing
