#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace psd {

/// The rows of embedding tables with the most updates, as plain values; `psd status --hot` shows them. The
/// fields are documented in docs/operations.md.
struct HotRowsStatus {
  struct Row {
    std::string id;  ///< decimal: a JSON number does not hold 64 bits everywhere
    uint64_t updates = 0;
    uint64_t version = 0;  ///< of the row shard at the last one

    static void fields(auto& visit, auto& self) {
      visit("id", self.id);
      visit("updates", self.updates);
      visit("version", self.version);
    }
  };
  struct Table {
    std::string name;
    std::vector<Row> rows;  ///< the one with the most updates first

    static void fields(auto& visit, auto& self) {
      visit("name", self.name);
      visit("rows", self.rows);
    }
  };
  std::vector<Table> tables;

  static void fields(auto& visit, auto& self) { visit("tables", self.tables); }
};

}  // namespace psd
