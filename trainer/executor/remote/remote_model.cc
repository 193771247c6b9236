#include "trainer/executor/remote/remote_model.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "trainer/executor/remote/loss_list.h"

namespace psd {

namespace {

/// A copy of samples [begin, begin + count).
NamedTensor partOf(const NamedTensor& tensor, uint64_t begin, uint64_t count) {
  const uint64_t bytes = tensor.bytes.size() / tensor.shape.front();
  NamedTensor part{tensor.name, tensor.type, tensor.shape, {}};
  part.shape.front() = count;
  const auto from = tensor.bytes.begin() + static_cast<ptrdiff_t>(begin * bytes);
  part.bytes.assign(from, from + static_cast<ptrdiff_t>(count * bytes));
  return part;
}

/// The loss and gradients of a part of a batch, scaled by the part's share of the batch.
Result<LossResult> shareOf(const LossSpec& loss, const std::vector<NamedTensor>& outputs,
                           const NamedTensor& target, double share) {
  PSD_ASSIGN_OR_RETURN(LossResult result, computeLoss(loss, outputs, target));
  result.loss *= share;
  for (NamedTensor& gradient : result.gradients) {
    for (float& value : gradient.values<float>()) value *= static_cast<float>(share);
  }
  return result;
}

}  // namespace

Result<std::unique_ptr<RemoteModel>> RemoteModel::make(RemoteSteps& steps, uint32_t microBatches) {
  const RemoteModule& module = steps.module();
  if (module.loss) {
    if (const Status known = checkLoss(*module.loss); !known.ok()) {
      return Error{known.error().code,
                   "the loss of module '" + module.name + "' is invalid: " + known.message()};
    }
    return std::unique_ptr<RemoteModel>(new RemoteModel(steps, *module.loss, microBatches));
  }
  return Error{ErrorCode::protocolMismatch,
               "module '" + module.name +
                   "' has a loss that is unknown to this version; the executor is psd " + module.version};
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
  const uint64_t samples = batch.size(), count = std::min<uint64_t>(microBatches_, samples);
  if (samples == 0) return Error{ErrorCode::invalidArgument, "a batch without samples"};
  std::vector<NamedTensor> inputs = tensorsOf(batch, steps_.module().inputs);
  NamedTensor target = targetOf(batch);
  if (count == 1) {
    return steps_.forward(std::move(inputs), [loss = loss_, target = std::move(target)](const auto& outputs) {
      return computeLoss(loss, outputs, target);
    });
  }
  std::vector<BatchPart> parts;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t begin = samples * i / count, own = samples * (i + 1) / count - begin;
    BatchPart part;
    for (const NamedTensor& input : inputs) part.inputs.push_back(partOf(input, begin, own));
    part.loss = [loss = loss_, target = partOf(target, begin, own),
                 share = static_cast<double>(own) / static_cast<double>(samples)](const auto& outputs) {
      return shareOf(loss, outputs, target, share);
    };
    parts.push_back(std::move(part));
  }
  return steps_.forward(std::move(parts));
}

Result<Score> RemoteModel::score(const Batch& batch) {
  PSD_ASSIGN_OR_RETURN(const auto outputs, steps_.outputs(tensorsOf(batch, steps_.module().inputs)));
  return scoreOutputs(loss_, outputs, targetOf(batch));
}

}  // namespace psd
