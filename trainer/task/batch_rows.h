#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace psd {

/// Purpose of a batch.
enum class Purpose : uint8_t { training, scoring };

/// The rows of one embedding table that a model needs for a batch. A value type.
struct RowLookup {
  std::string name;           ///< by which the model finds them; unique within the batch
  uint32_t table = 0;         ///< index into ModelSpec::tables
  std::vector<uint64_t> ids;  ///< in any order, with repetitions
  /// For each id its row in the table's block, once the rows have been pulled. Not owned.
  std::span<const int64_t> places = {};
};

/// The distinct rows of one table in a batch. Not owned; 64-byte aligned.
struct RowBlock {
  std::span<float> values;     ///< [rows, dim]
  std::span<float> gradients;  ///< [rows, dim]; the model adds to them
};

/// The embedding rows of a batch.
struct BatchRows {
  std::vector<RowLookup> lookups;
  std::vector<RowBlock> blocks;  ///< one per table of the model, in its order, once the rows have been pulled
};

}  // namespace psd
