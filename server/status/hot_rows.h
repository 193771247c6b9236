#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace psd {

/// The most frequently updated rows of embedding tables, as plain values; `psd status --hot` shows them. The
/// fields are documented in docs/reference/status.md.
struct HotRowsStatus {
  struct Row {
    std::string id;  ///< decimal: JSON numbers do not hold 64 bits everywhere
    uint64_t updates = 0;
    uint64_t version = 0;  ///< of the row shard at its last update

    static void fields(auto& visit, auto& self) {
      visit("id", self.id);
      visit("updates", self.updates);
      visit("version", self.version);
    }
  };
  struct Table {
    std::string name;
    std::vector<Row> rows;  ///< most updated first

    static void fields(auto& visit, auto& self) {
      visit("name", self.name);
      visit("rows", self.rows);
    }
  };
  std::vector<Table> tables;

  static void fields(auto& visit, auto& self) { visit("tables", self.tables); }
};

}  // namespace psd
