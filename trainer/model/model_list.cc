#include "trainer/model/model_list.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "common/text/text.h"
#include "trainer/model/script_network.h"
#include "trainer/model/step_network.h"

namespace psd {

// Each is defined in its own file in this folder.
NetworkMaker readDeepFm(NamedOptions& options);
NetworkMaker readDlrm(NamedOptions& options);
NetworkMaker readFm(NamedOptions& options);
NetworkMaker readGpt(NamedOptions& options);
NetworkMaker readLogistic(NamedOptions& options);
NetworkMaker readLstmLm(NamedOptions& options);
NetworkMaker readMf(NamedOptions& options);
NetworkMaker readMlp(NamedOptions& options);
NetworkMaker readMnistCnn(NamedOptions& options);
NetworkMaker readResnet20(NamedOptions& options);
NetworkMaker readSvm(NamedOptions& options);

std::span<const ModelEntry> modelList() {
  static const ModelEntry kModels[] = {
      {"mlp", "784-256-10, ReLU", readMlp},
      {"mnist_cnn", "the convolutional network of PyTorch's MNIST example", readMnistCnn},
      {"resnet20", "the residual network of 20 layers with GroupNorm, [:width=16]", readResnet20},
      {"lstm_lm",
       "language model for texts, [:embedding=256,hidden=512,vocabulary=10000,dropout=0,candidates=0]",
       readLstmLm},
      {"gpt", "transformer for texts, [:layers=4,width=128,heads=4,context=128,vocabulary=256,dropout=0]",
       readGpt},
      {"mf", "matrix factorisation for ratings, [:dim=32,decay=0.05]", readMf},
      {"dlrm", "recommender for clicks, [:dim=16,hidden=64,numbers=13,categories=26]", readDlrm},
      {"svm", "linear support vector machine for documents, [:decay=1e-5]", readSvm},
      {"logistic", "logistic regression for libsvm and criteo", readLogistic},
      {"fm", "factorization machine for libsvm and criteo, [:dim=8]", readFm},
      {"deepfm", "factorization machine and perceptron for criteo, [:dim=8,fields=39,hidden=64]", readDeepFm},
  };
  return kModels;
}

Result<ModelChoice> chooseModel(std::string_view text, std::span<const std::string_view> offered) {
  if (text.ends_with(kScriptSuffix)) {
    const std::string path(text);
    return ModelChoice{std::filesystem::path(path).stem(), path, [path] { return loadScriptNetwork(path); }};
  }
  if (text.ends_with(kStepSuffix)) {
    const std::string path(text);
    return ModelChoice{std::filesystem::path(path).stem(), path, [path] { return loadStepNetwork(path); }};
  }
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::vector<std::string_view> names;
  for (const ModelEntry& entry : modelList()) {
    names.push_back(entry.name);
    if (entry.name != name) continue;
    NamedOptions options("model", name, colon == std::string_view::npos ? "" : text.substr(colon + 1));
    NetworkMaker makeNetwork = entry.read(options);
    PSD_RETURN_IF_ERROR(options.finish());
    return ModelChoice{std::string(name), options.spec(), std::move(makeNetwork)};
  }
  if (!offered.empty()) names.assign(offered.begin(), offered.end());
  const std::string_view near = nearest(name, names);
  return Error{ErrorCode::invalidArgument,
               "'" + std::string(name) + "' is not a model; expected one of " + joined(names, ", ") +
                   ", or a file whose name ends with .pt" + (offered.empty() ? " or .pt2" : "") +
                   (near.empty() ? "" : ". Did you mean " + std::string(near) + "?")};
}

}  // namespace psd
