#include "trainer/remote/remote_model.h"

#include <utility>

#include "trainer/remote/cross_entropy.h"

namespace psd {
namespace {

constexpr const char* kLabel = "label";

}  // namespace

std::vector<ColumnSpec> RemoteModel::inputs() const {
  std::vector<ColumnSpec> columns = steps_.module().inputs;
  columns.push_back({kLabel, ElementType::i64, {}, 0});
  return columns;
}

Status RemoteModel::reserve(uint32_t gradientArrays, bool spare) {
  if (gradientArrays <= 1 && !spare) return {};
  return {ErrorCode::invalidArgument, "steps at an executor do not overlap"};
}

Result<double> RemoteModel::computeGradients(const Batch& batch, const GradientsFinal&) {
  const auto labels = batch.values<int64_t>(kLabel);
  return steps_.forward(
      tensorsOf(batch, steps_.module().inputs),
      [labels = std::vector<int64_t>(labels.begin(), labels.end())](const std::vector<NamedTensor>& outputs) {
        return crossEntropy(outputs, labels);
      });
}

Result<Score> RemoteModel::score(const Batch& batch) {
  PSD_ASSIGN_OR_RETURN(const auto outputs, steps_.outputs(tensorsOf(batch, steps_.module().inputs)));
  return scoreClasses(outputs, batch.values<int64_t>(kLabel));
}

}  // namespace psd
