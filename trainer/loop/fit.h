#pragma once

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"
#include "trainer/model/model.h"

namespace psd {

/// Whether the data set has every column that the model takes; the error names the first that it has not,
/// or has otherwise, and says what both have.
Status checkFit(const Model& model, const Dataset& dataset);

}  // namespace psd
