#pragma once

#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Open text files of sparse examples in the formats of line_format.h. `argument` is FILES[:test=FILES],
/// where FILES is a file, a folder, whose files are taken except those whose names begin with a dot or an
/// underscore, a pattern with *, ? or [], or several of these with commas between them. A name that ends with
/// .gz is of a file compressed by gzip. Without test files about every tenth example, chosen by a hash of its
/// number, is a test example. Errors name the file, and the line.
Result<std::unique_ptr<Dataset>> openLibsvm(const std::string& argument, Split split,
                                            const DatasetOptions& options);
Result<std::unique_ptr<Dataset>> openCriteo(const std::string& argument, Split split,
                                            const DatasetOptions& options);

}  // namespace psd
