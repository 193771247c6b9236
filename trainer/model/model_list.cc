#include "trainer/model/model_list.h"

#include "common/text/text.h"

namespace psd {

// One per file of this folder.
std::shared_ptr<Network> makeMlp();
std::shared_ptr<Network> makeMnistCnn();

std::span<const ModelEntry> modelList() {
  static const ModelEntry kModels[] = {
      {"mlp", "784-256-10, ReLU", {1, 28, 28}, 10, makeMlp},
      {"mnist_cnn", "the convolutional net of PyTorch's MNIST example", {1, 28, 28}, 10, makeMnistCnn},
  };
  return kModels;
}

Result<const ModelEntry*> findModel(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ModelEntry& entry : modelList()) {
    if (entry.name == name) return &entry;
    names.push_back(entry.name);
  }
  const std::string_view near = nearest(name, names);
  return Error{ErrorCode::invalidArgument,
               "'" + std::string(name) + "' is not a model; expected one of " + joined(names, ", ") +
                   (near.empty() ? "" : ". Did you mean " + std::string(near) + "?")};
}

}  // namespace psd
