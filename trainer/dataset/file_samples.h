#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Whether the suffix of `data` is one that openFiles() reads.
bool hasFileSuffix(std::string_view data);

/// Reads samples from files, one per row: FILE.safetensors, FILE.csv, or A.npy,B.npy,… with one column each
/// (see stored_columns.h). "FILES:test=FILES" names the test files; otherwise about every tenth row, chosen
/// by a hash of its number, is a test sample. A column of non-negative whole numbers gets its maximum over
/// both splits plus 1 as ColumnSpec::bound. Errors name the file.
Result<std::unique_ptr<Dataset>> openFiles(const std::string& argument, Split split);

}  // namespace psd
