#pragma once

#include <cstdint>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"
#include "trainer/model/model.h"

namespace psd {

/// Checks that the data set has every column that the model takes; the error names the first column that is
/// missing or differs, and describes both sides.
Status checkFit(const Model& model, const Dataset& dataset);

/// Checks that batches of up to `samples` samples of the data set are possible.
Status checkBatchSize(const Dataset& dataset, uint64_t samples);

}  // namespace psd
