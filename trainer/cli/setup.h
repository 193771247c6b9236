#pragma once

#include <memory>

#include "common/status/status.h"
#include "trainer/cli/command.h"
#include "trainer/dataset/dataset.h"
#include "trainer/model/model.h"

namespace psd {

/// Opens what --data names. Errors name the flag.
Result<std::unique_ptr<Dataset>> openData(const CommonOptions& options, Split split);

/// Builds what --model names on the device that --device names. Errors name the flag.
Result<std::unique_ptr<Model>> buildModel(const CommonOptions& options);

}  // namespace psd
