#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace psd {

/// What a batch is for.
enum class Purpose : uint8_t { training, scoring };

/// Rows of one embedding table that a model takes for a batch. A value type.
struct RowLookup {
  std::string name;           ///< by which the model finds them; none of the batch's other names
  uint32_t table = 0;         ///< index into ModelSpec::tables
  std::vector<uint64_t> ids;  ///< in any order, any number of times
  /// For each id its row in the table's block, once the rows are there. Somebody else's memory.
  std::span<const int64_t> places = {};
};

/// The rows of one table that a batch has, each once. Somebody else's memory; 64-byte aligned.
struct RowBlock {
  std::span<float> values;     ///< [rows, dim]
  std::span<float> gradients;  ///< [rows, dim], to be added to
};

/// The rows that go with the samples of a batch.
struct BatchRows {
  std::vector<RowLookup> lookups;
  std::vector<RowBlock> blocks;  ///< of all tables of the model, in its order, once the rows are there
};

}  // namespace psd
