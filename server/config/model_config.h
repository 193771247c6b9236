#pragma once

#include <string>

#include "common/config/config_reader.h"
#include "common/types/model_spec.h"

namespace psd {

/// The model that a daemon has from its start: its tensors and tables, whose values the initializer sends, or
/// a file with both. A value type.
struct ModelConfig {
  ModelSpec spec;    ///< with a file the name alone
  std::string file;  ///< path of a .safetensors file; empty: `spec` has the tensors and tables
};

ModelConfig readModel(ConfigReader in);

}  // namespace psd
