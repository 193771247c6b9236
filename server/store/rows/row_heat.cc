#include "server/store/rows/row_heat.h"

#include <algorithm>
#include <tuple>

namespace psd {

std::vector<HotRow> hottestRows(const RowTable& table, size_t most) {
  const auto hotter = [](const HotRow& one, const HotRow& other) {
    return std::tuple(one.meta.count(), one.meta.version(), other.id) >
           std::tuple(other.meta.count(), other.meta.version(), one.id);
  };
  std::vector<HotRow> hottest;  // a heap with the coldest row on top
  const auto look = [&](const RowEntry& entry) {
    const HotRow row{entry.id, table.meta(entry.row)};
    if (hottest.size() < most) {
      hottest.push_back(row);
      std::ranges::push_heap(hottest, hotter);
    } else if (most > 0 && hotter(row, hottest.front())) {
      std::ranges::pop_heap(hottest, hotter);
      hottest.back() = row;
      std::ranges::push_heap(hottest, hotter);
    }
    return false;  // next() is to return no entries
  };
  std::vector<RowEntry> none;
  for (RowCursor cursor; !cursor.ended;) {
    const Epochs::Guard guard(table.epochs());
    table.next(cursor, none, look);
  }
  std::ranges::sort_heap(hottest, hotter);
  return hottest;
}

}  // namespace psd
