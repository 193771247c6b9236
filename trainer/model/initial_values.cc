#include "trainer/model/initial_values.h"

#include <functional>
#include <optional>
#include <span>

#include "common/safetensors/safetensors.h"
#include "common/types/finite.h"
#include "common/types/model_layout.h"
#include "trainer/model/torch_script.h"

namespace psd {
namespace {

/// Reads the elements of a tensor. The error names the tensor and the file.
using ReadTensor = std::function<Status(const TensorSpec& tensor, std::span<float> into)>;

Error mismatch(const TensorSpec& tensor, const std::string& why, const std::string& path) {
  return {ErrorCode::modelMismatch, "tensor " + tensor.toString() + ": " + why + " '" + path + "'"};
}

Status fill(Model& model, const std::string& path, const ReadTensor& read) {
  const ModelLayout layout(model.spec());
  for (size_t i = 0; i < model.spec().tensors.size(); ++i) {
    const TensorSpec& tensor = model.spec().tensors[i];
    const TensorPlace& place = layout.places()[i];
    const std::span<float> values = model.parameters().subspan(place.begin, place.count);
    PSD_RETURN_IF_ERROR(read(tensor, values));
    if (!allFinite(values)) return mismatch(tensor, "holds NaN or infinity in", path);
  }
  return {};
}

}  // namespace

Status loadInitialValues(Model& model, Env& env, const std::string& path) {
  if (path.ends_with(".safetensors")) {
    PSD_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::open(env, path));
    return fill(model, path, [&](const TensorSpec& tensor, std::span<float> into) -> Status {
      PSD_ASSIGN_OR_RETURN(const size_t index, file.find(tensor));
      return file.read(index, 0, into);
    });
  }
  // Reports a missing file with the usual error text.
  PSD_RETURN_IF_ERROR(env.open(path).status());
  PSD_ASSIGN_OR_RETURN(const TorchScriptFile file, TorchScriptFile::open(path));
  return fill(model, path, [&](const TensorSpec& tensor, std::span<float> into) -> Status {
    const std::optional<TensorSpec> found = file.find(tensor.name);
    if (!found) return mismatch(tensor, "not in", path);
    if (found->shape != tensor.shape) return mismatch(tensor, "is " + found->toString() + " in", path);
    const Status read = file.read(tensor.name, into);
    return read.ok() ? read : Status(mismatch(tensor, read.message() + " in", path));
  });
}

}  // namespace psd
