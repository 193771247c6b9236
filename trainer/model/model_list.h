#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "trainer/model/device.h"
#include "trainer/model/model.h"

namespace psd {

class Network;

/// One model that `--model` can name.
struct ModelEntry {
  std::string_view name;
  std::string_view description;
  std::vector<uint64_t> inputShape;
  uint32_t classCount = 0;
  std::shared_ptr<Network> (*makeNetwork)();
};

/// Every model there is. A new one is one file and one line in model_list.cc.
std::span<const ModelEntry> modelList();

/// The entry of that name; the error lists all and suggests the nearest.
Result<const ModelEntry*> findModel(std::string_view name);

struct ModelOptions {
  /// The initial values are a pure function of it, whichever rank or device.
  uint64_t seed = 1;
  Rank rank;             ///< with the seed: what dropout drops
  Device device;         ///< as chooseDevice() returned it
  uint32_t threads = 1;  ///< that LibTorch computes with
};

/// Builds a model with LibTorch. Uses LibTorch's global random generator and thread pool, so one model
/// trains in a process at a time.
Result<std::unique_ptr<Model>> makeModel(const ModelEntry& entry, const ModelOptions& options);

}  // namespace psd
