#include "server/store/sorting_network.h"

#include <algorithm>

namespace psd {

std::vector<Comparator> selectionNetwork(uint32_t count, uint32_t first, uint32_t last) {
  std::vector<Comparator> all, needed;
  visitSortingNetwork(count, [&](Comparator comparator) { all.push_back(comparator); });
  std::vector<char> matters(count, 0);
  std::fill(matters.begin() + first, matters.begin() + last, 1);
  std::for_each(all.rbegin(), all.rend(), [&](Comparator comparator) {
    if (!matters[comparator.low] && !matters[comparator.high]) return;
    matters[comparator.low] = matters[comparator.high] = 1;
    needed.push_back(comparator);
  });
  std::reverse(needed.begin(), needed.end());
  return needed;
}

}  // namespace psd
