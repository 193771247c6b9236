#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// A kind of data set for `--data`.
struct DatasetEntry {
  std::string_view name;
  std::string_view usage;  ///< the syntax after --data, human-readable
  /// `argument`: the text after "name:", or empty.
  Result<std::unique_ptr<Dataset>> (*open)(const std::string& argument, Split split,
                                           const DatasetOptions& options);
  bool skipsBadLines = false;  ///< DatasetOptions::badLines may be above 0
};

/// All data sets. To add one, add a file and a line in dataset_list.cc.
std::span<const DatasetEntry> datasetList();

/// Opens the data set that `--data` names: "NAME" or "NAME:ARGUMENT" from the list, files by their suffix, or
/// a folder with an MNIST set. Errors state the expected syntax.
Result<std::unique_ptr<Dataset>> openDataset(const std::string& data, Split split,
                                             const DatasetOptions& options);

}  // namespace psd
