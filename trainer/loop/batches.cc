#include "trainer/loop/batches.h"

#include <string>
#include <vector>

namespace psd {
namespace {

std::string describe(const std::vector<uint64_t>& shape, uint32_t classes) {
  std::string text = "samples of ";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : "x") + std::to_string(shape[i]);
  return text + " in " + std::to_string(classes) + " classes";
}

}  // namespace

Status checkFit(const Model& model, const Dataset& dataset) {
  const ImageShape image = dataset.imageShape();
  const std::vector<uint64_t> shape{image.channels, image.height, image.width};
  if (shape == model.inputShape() && dataset.classCount() == model.classCount()) return {};
  return {ErrorCode::invalidArgument, "the data has " + describe(shape, dataset.classCount()) +
                                          ", but the model " + model.spec().name + " takes " +
                                          describe(model.inputShape(), model.classCount())};
}

}  // namespace psd
