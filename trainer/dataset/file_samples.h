#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Whether `data` names files that openFiles() reads, by how it ends.
bool namesFiles(std::string_view data);

/// Samples that lie in files, a row each: FILE.safetensors, FILE.csv, or A.npy,B.npy, … of a column each (see
/// stored_columns.h). "FILES:test=FILES" names those of the test; else every tenth row, chosen by its number,
/// is for the test. Whole numbers of a column that has none below 0 are below its largest plus 1
/// (ColumnSpec::bound), of both splits together. Errors name the file.
Result<std::unique_ptr<Dataset>> openFiles(const std::string& argument, Split split);

}  // namespace psd
