#pragma once

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"
#include "trainer/model/model.h"

namespace psd {

/// Where a data set meets a model.
inline BatchView viewOf(const Batch& batch) { return {batch.images, batch.labels}; }

/// Whether the model takes the data set's images and has an output for each class; the error says what both
/// have.
Status checkFit(const Model& model, const Dataset& dataset);

}  // namespace psd
