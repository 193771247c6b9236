#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "common/text/named_options.h"
#include "common/types/ids.h"
#include "trainer/model/device.h"
#include "trainer/model/model.h"

namespace psd {

class Network;
using NetworkMaker = std::function<std::shared_ptr<Network>()>;

/// One kind of model that `--model` can name.
struct ModelEntry {
  std::string_view name;
  std::string_view description;
  /// What makes a network with these options.
  NetworkMaker (*read)(NamedOptions& options);
};

/// A model of the list with its options, or a user's own. A value type.
struct ModelChoice {
  std::string name;
  std::string spec;  ///< "lstm_lm:embedding=256,…" with every option, or the file
  NetworkMaker makeNetwork;
};

/// Every model there is. A new one is one file and one line in model_list.cc.
std::span<const ModelEntry> modelList();

/// The model that NAME[:option=value[,option=value]] names, or FILE.pt or FILE.pt2, which makeModel() loads;
/// the error lists all, or the names that are `offered` where .pt2 is not, and suggests the nearest, or is
/// about the option.
Result<ModelChoice> chooseModel(std::string_view text, std::span<const std::string_view> offered = {});

struct ModelOptions {
  /// The initial values are a pure function of it, whichever rank or device.
  uint64_t seed = 1;
  Rank rank;             ///< with the seed: what dropout drops
  Device device;         ///< as chooseDevice() returned it
  uint32_t threads = 1;  ///< that LibTorch computes with
};

/// Builds a model with LibTorch; invalidArgument: a user's own model is at fault. Uses LibTorch's global
/// random generator and thread pool, so one model trains in a process at a time.
Result<std::unique_ptr<Model>> makeModel(const ModelChoice& choice, const ModelOptions& options);

}  // namespace psd
