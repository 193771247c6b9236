#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// One kind of data set that `--data` can name.
struct DatasetEntry {
  std::string_view name;
  std::string_view usage;  ///< what to write after --data, for people
  /// `argument` is what follows "name:", or empty.
  Result<std::unique_ptr<Dataset>> (*open)(const std::string& argument, Split split, uint64_t seed);
};

/// Every data set there is. A new one is one file and one line in dataset_list.cc.
std::span<const DatasetEntry> datasetList();

/// Opens what `--data` names: "NAME", "NAME:ARGUMENT" from the list, files by how they end, or the folder of
/// an MNIST set. `seed` matters to sets that are made up. Errors say what would be right.
Result<std::unique_ptr<Dataset>> openDataset(const std::string& data, Split split, uint64_t seed);

}  // namespace psd
