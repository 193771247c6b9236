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

/// A kind of model for `--model`.
struct ModelEntry {
  std::string_view name;
  std::string_view description;
  /// Returns the maker of networks with these options.
  NetworkMaker (*read)(NamedOptions& options);
};

/// A built-in model with its options, or a user's own model. A value type.
struct ModelChoice {
  std::string name;
  std::string spec;  ///< "lstm_lm:embedding=256,…" with every option, or the file name
  NetworkMaker makeNetwork;
};

/// All built-in models. To add one, add a file and a line in model_list.cc.
std::span<const ModelEntry> modelList();

/// Parses NAME[:option=value[,option=value]], or FILE.pt or FILE.pt2, which makeModel() loads. The error is
/// about an option, or lists the names and suggests the nearest: all models, or those `offered`, in which
/// case .pt2 is not supported.
Result<ModelChoice> chooseModel(std::string_view text, std::span<const std::string_view> offered = {});

struct ModelOptions {
  /// The initial values are a pure function of the seed, independent of rank and device.
  uint64_t seed = 1;
  Rank rank;                 ///< with the seed, determines dropout
  Device device;             ///< as chooseDevice() returned it
  uint32_t threads = 1;      ///< compute threads of LibTorch
  DType dtype = DType::f32;  ///< of parameters and of the computation
};

/// Builds a model with LibTorch; invalidArgument: a user's own model is invalid. Uses LibTorch's global
/// random generator and thread pool, so only one model can train in a process at a time.
Result<std::unique_ptr<Model>> makeModel(const ModelChoice& choice, const ModelOptions& options);

}  // namespace psd
