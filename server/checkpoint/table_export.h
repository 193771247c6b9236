#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/os/env.h"
#include "common/status/status.h"
#include "server/checkpoint/checkpoint_folder.h"

namespace psd {

/// Formats of an exported embedding table.
enum class TableFormat : uint8_t {
  safetensors,  ///< "keys", U64 [rows], and "values", F32 [rows, dim]
  csv,          ///< "id,0,1,…", then the id and the values of a row
  libsvm,       ///< the id, then index:value of the values that are not zero; no line for a row without any
};
/// Names of flags, in the order of TableFormat.
inline constexpr std::array<std::string_view, 3> kTableFormats{"safetensors", "csv", "libsvm"};

/// What was exported. A value type.
struct ExportedTable {
  uint64_t rows = 0;
  uint64_t nonZeroValues = 0;
};

/// Exports one embedding table of a checkpoint, atomically; the rows are ordered by id hash. Texts have the
/// shortest decimal numbers that are read as the same floats.
Result<ExportedTable> exportTable(Env& env, const Checkpoint& checkpoint, const std::string& table,
                                  TableFormat format, const std::string& to);

}  // namespace psd
