#include "trainer/remote/remote_model.h"

#include <utility>

#include "trainer/remote/loss_list.h"

namespace psd {

Result<std::unique_ptr<RemoteModel>> RemoteModel::make(RemoteSteps& steps) {
  const RemoteModule& module = steps.module();
  if (module.loss) {
    if (const Status known = checkLoss(*module.loss); !known.ok()) {
      return Error{known.error().code,
                   "the loss of module '" + module.name + "' makes no sense: " + known.message()};
    }
    return std::unique_ptr<RemoteModel>(new RemoteModel(steps, *module.loss));
  }
  return Error{ErrorCode::protocolMismatch,
               "module '" + module.name +
                   "' has a loss that this version does not know; the executor is psd " + module.version};
}

std::vector<ColumnSpec> RemoteModel::inputs() const {
  std::vector<ColumnSpec> columns = steps_.module().inputs;
  for (const ColumnSpec& column : columns) {
    if (column.name == loss_.target.name) return columns;
  }
  columns.push_back(loss_.target);
  return columns;
}

Status RemoteModel::reserve(uint32_t gradientArrays, bool spare) {
  if (gradientArrays <= 1 && !spare) return {};
  return {ErrorCode::invalidArgument, "steps at an executor do not overlap"};
}

NamedTensor RemoteModel::targetOf(const Batch& batch) const {
  return tensorsOf(batch, std::span(&loss_.target, 1)).front();
}

Result<double> RemoteModel::computeGradients(const Batch& batch, const GradientsFinal&) {
  return steps_.forward(tensorsOf(batch, steps_.module().inputs),
                        [loss = loss_, target = targetOf(batch)](const std::vector<NamedTensor>& outputs) {
                          return computeLoss(loss, outputs, target);
                        });
}

Result<Score> RemoteModel::score(const Batch& batch) {
  PSD_ASSIGN_OR_RETURN(const auto outputs, steps_.outputs(tensorsOf(batch, steps_.module().inputs)));
  return scoreOutputs(loss_, outputs, targetOf(batch));
}

}  // namespace psd
