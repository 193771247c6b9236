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

/// What a file holds under a name, and its elements.
struct NamedTensors {
  std::function<std::optional<TensorSpec>(const std::string& name)> find;
  std::function<Status(const std::string& name, std::span<float> into)> read;
};

Status fill(Model& model, const std::string& path, const NamedTensors& file) {
  const ModelLayout layout(model.spec());
  for (size_t i = 0; i < model.spec().tensors.size(); ++i) {
    const TensorSpec& tensor = model.spec().tensors[i];
    const auto bad = [&](const std::string& why) {
      return Error{ErrorCode::modelMismatch, "tensor " + tensor.toString() + ": " + why + " '" + path + "'"};
    };
    const std::optional<TensorSpec> found = file.find(tensor.name);
    if (!found) return bad("not in");
    if (*found != tensor) return bad("is " + found->toString() + " in");
    const TensorPlace& place = layout.places()[i];
    const std::span<float> values = model.parameters().subspan(place.begin, place.count);
    if (Status read = file.read(tensor.name, values); !read.ok()) return bad(read.message() + " in");
    if (!allFinite(values)) return bad("holds NaN or infinity in");
  }
  return {};
}

}  // namespace

Status loadInitialValues(Model& model, Env& env, const std::string& path) {
  if (path.ends_with(".safetensors")) {
    PSD_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::open(env, path));
    return fill(model, path,
                {[&](const std::string& name) -> std::optional<TensorSpec> {
                   const auto index = file.find(name);
                   return index ? std::optional(file.model().tensors[*index]) : std::nullopt;
                 },
                 [&](const std::string& name, std::span<float> into) {
                   return file.read(*file.find(name), 0, into);
                 }});
  }
  // So that a file which is not there is told of as everywhere.
  PSD_RETURN_IF_ERROR(env.open(path).status());
  PSD_ASSIGN_OR_RETURN(const TorchScriptFile file, TorchScriptFile::open(path));
  return fill(model, path,
              {[&](const std::string& name) { return file.find(name); },
               [&](const std::string& name, std::span<float> into) { return file.read(name, into); }});
}

}  // namespace psd
