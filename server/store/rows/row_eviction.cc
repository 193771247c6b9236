#include "server/store/rows/row_eviction.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace psd {
namespace {

using Wide = unsigned __int128;

/// Part `index` of a hash range split into `parts`.
HashRange partOf(const HashRange& range, uint64_t index, uint64_t parts) {
  const Wide width = Wide{range.last - range.first} + 1;
  const auto begin = [&](uint64_t i) { return static_cast<uint64_t>(width * i / parts); };
  return {range.first + begin(index), range.first + (begin(index + 1) - 1)};
}

/// A row that may be evicted; the lowest rank is evicted first.
struct Candidate {
  double rank = 0;
  uint64_t hash = 0, id = 0;
};

/// Σ values² of each row.
std::vector<double> squaresOf(const RowTable& table, const std::vector<RowEntry>& entries) {
  constexpr size_t kRowsAtOnce = 256;
  std::vector<double> squares;
  std::vector<uint32_t> rows;
  std::vector<float> values;
  for (size_t first = 0; first < entries.size(); first += rows.size()) {
    rows.resize(std::min(kRowsAtOnce, entries.size() - first));
    for (size_t i = 0; i < rows.size(); i++) rows[i] = entries[first + i].row;
    values.resize(rows.size() * table.dim());
    table.readPlane(0, rows, values);
    for (size_t i = 0; i < rows.size(); i++) {
      double square = 0;
      for (uint32_t d = 0; d < table.dim(); d++) {
        const double value = values[i * table.dim() + d];
        square += value * value;
      }
      squares.push_back(square);
    }
  }
  return squares;
}

/// Appends the rows with their ranks under the rule.
void append(std::vector<Candidate>& candidates, const RowTable& table, const EvictRule& rule,
            const std::vector<RowEntry>& entries) {
  const bool byNorm = rule.by == EvictRule::By::norm;
  const std::vector<double> squares = byNorm ? squaresOf(table, entries) : std::vector<double>();
  for (size_t i = 0; i < entries.size(); i++) {
    const double rank = byNorm ? squares[i] : static_cast<double>(table.meta(entries[i].row).version());
    candidates.push_back({rank, entries[i].hash, entries[i].id});
  }
}

bool isSpared(std::span<const uint32_t> spared, uint32_t row) {
  return std::binary_search(spared.begin(), spared.end(), row);
}

}  // namespace

std::vector<uint64_t> dueRows(const RowTable& table, const EvictRule& rule, uint64_t number,
                              std::span<const uint32_t> spared) {
  std::vector<uint64_t> due;
  const uint64_t pass = rule.pass();
  if (pass == 0 || table.size().rows == 0) return due;
  const bool byNorm = rule.by == EvictRule::By::norm;
  const HashRange part = partOf(table.options().range, number % pass, pass);
  const auto applies = [&](const RowEntry& entry) {
    // The hash first: it is at hand, and it excludes most rows without a read of their meta words.
    if (!part.contains(entry.hash)) return false;
    const bool old = table.meta(entry.row).version() + rule.updates < number;
    return (byNorm || old) && !isSpared(spared, entry.row);
  };
  std::vector<RowEntry> entries;
  for (RowCursor cursor{part.first}; !cursor.ended && cursor.hash <= part.last && due.size() < kDueRowsMax;) {
    table.next(cursor, entries, applies);
    const std::vector<double> squares = byNorm ? squaresOf(table, entries) : std::vector<double>();
    for (size_t i = 0; i < entries.size() && due.size() < kDueRowsMax; i++) {
      if (!byNorm || squares[i] < rule.below * rule.below) due.push_back(entries[i].id);
    }
  }
  return due;
}

std::vector<uint64_t> rowsToEvict(const RowTable& table, const EvictRule& rule, uint64_t number,
                                  uint64_t count, std::span<const uint32_t> spared) {
  constexpr uint64_t kScanMin = 4096, kScanPerRow = 8, kExtraRows = 512, kShareOfTable = 16;
  const HashRange& range = table.options().range;
  const uint64_t wanted = std::max(count, std::min(kExtraRows, table.size().rows / kShareOfTable));
  const uint64_t scanMax = std::max(kScanMin, count * kScanPerRow);
  const Wide width = Wide{range.last - range.first} + 1;
  const uint64_t begin = range.first + static_cast<uint64_t>(width * splitMix(number) >> 64);
  std::vector<Candidate> candidates;
  std::vector<RowEntry> entries;
  const auto lookFrom = [&](const HashRange& part) {
    const auto applies = [&](const RowEntry& entry) {
      return part.contains(entry.hash) && !isSpared(spared, entry.row);
    };
    for (RowCursor cursor{part.first};
         !cursor.ended && cursor.hash <= part.last && candidates.size() < scanMax;) {
      table.next(cursor, entries, applies);
      entries.resize(std::min<uint64_t>(entries.size(), scanMax - candidates.size()));
      append(candidates, table, rule, entries);
    }
  };
  lookFrom({begin, range.last});
  if (begin > range.first) lookFrom({range.first, begin - 1});
  if (candidates.size() < count) return {};
  const auto before = [](const Candidate& one, const Candidate& other) {
    return std::tuple(one.rank, one.hash) < std::tuple(other.rank, other.hash);
  };
  const auto end = candidates.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(wanted, candidates.size()));
  std::partial_sort(candidates.begin(), end, candidates.end(), before);
  std::vector<uint64_t> ids;
  for (auto one = candidates.begin(); one != end; ++one) ids.push_back(one->id);
  return ids;
}

}  // namespace psd
