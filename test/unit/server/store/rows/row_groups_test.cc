#include "server/store/rows/cuda/row_groups.h"

#include <map>
#include <vector>

#include "server/store/rows/row_layout.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::row_groups_test {
namespace {

TEST_CASE("gradients of a row are consecutive and in order") {
  testing::Random random(6);
  RowGroups groups;
  for (int round = 0; round < 200; round++) {
    std::vector<uint32_t> rows(random.below(300));
    const size_t different = 1 + random.below(400);
    for (uint32_t& row : rows) {
      row = random.oneIn(5) ? kNoRow : static_cast<uint32_t>(random.below(different)) << 16;
    }
    groups.make(rows);
    std::map<uint32_t, std::vector<uint32_t>> expected;
    std::vector<uint32_t> firsts;
    for (uint32_t i = 0; i < rows.size(); i++) {
      if (rows[i] == kNoRow) continue;
      if (!expected.contains(rows[i])) firsts.push_back(rows[i]);
      expected[rows[i]].push_back(i);
    }
    REQUIRE(std::vector<uint32_t>(groups.rows().begin(), groups.rows().end()) == firsts);
    REQUIRE(groups.ends().size() == firsts.size());
    uint32_t begin = 0;
    for (size_t i = 0; i < firsts.size(); i++) {
      const auto own = groups.order().subspan(begin, groups.ends()[i] - begin);
      REQUIRE(std::vector<uint32_t>(own.begin(), own.end()) == expected[firsts[i]]);
      begin = groups.ends()[i];
    }
    REQUIRE(begin == groups.order().size());
  }
}

}  // namespace
}  // namespace psd::row_groups_test
