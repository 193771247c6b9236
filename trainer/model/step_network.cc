#include "trainer/model/step_network.h"

#include <utility>
#include <vector>

#include <torch/utils.h>

#include "trainer/model/model_outputs.h"
#include "trainer/model/network.h"
#include "trainer/model/own_model.h"
#include "trainer/model/row_tables.h"
#include "trainer/model/step_package.h"

namespace psd {
namespace {

/// See loadStepNetwork(). Both graphs take the parameters, the columns and the rows, in this order. "step"
/// returns the loss, the gradients of the parameters and those of the rows; "score" returns what the class
/// returned. Random draws use LibTorch's generator.
class StepNetwork : public Network {
 public:
  explicit StepNetwork(const std::string& path) : StepNetwork(path, StepPackage(path)) {}

  std::vector<std::pair<std::string, torch::Tensor>> trained() const override { return trained_; }
  std::vector<ColumnSpec> inputs() const override { return declaration_.columns; }
  std::vector<TableSpec> tables() const override { return declaration_.tables; }

  void placeOn(torch::Device device) override {
    if (device.is_cpu()) return;
    throw NetworkError(quotedPath(path_) + " was compiled for the CPU, and the device is " + device.str() +
                       "; expected --device cpu");
  }

  std::vector<RowLookup> lookUp(const Batch& batch, Purpose) override {
    std::vector<RowLookup> lookups;
    for (const auto& rows : declaration_.rows) {
      lookups.push_back(lookUpColumn(batch, rows.column, rows.name, rows.table));
    }
    return lookups;
  }

  bool computesGradients() const override { return true; }

  GradientStep step(const Tensors& batch) override {
    return withFileName(path_, [&] {
      const size_t parameters = trained_.size();
      std::vector<torch::Tensor> outputs =
          step_.run(inputsOf(batch), 1 + parameters + declaration_.rows.size());
      GradientStep step;
      step.loss = ModelOutputs({{"loss", outputs.front()}}).loss().item<double>();
      for (size_t i = 0; i < parameters; ++i) step.gradients.push_back(std::move(outputs[1 + i]));
      for (size_t i = 0; i < declaration_.rows.size(); ++i) {
        step.rowGradients.emplace(declaration_.rows[i].name, std::move(outputs[1 + parameters + i]));
      }
      return step;
    });
  }

  Score score(const Tensors& batch) override {
    return withFileName(path_, [&] {
      const std::vector<torch::Tensor> outputs = score_.run(inputsOf(batch), names_.size());
      Tensors named;
      for (size_t i = 0; i < outputs.size(); ++i) named.emplace(names_[i], outputs[i]);
      return ModelOutputs(std::move(named))
          .score(declaration_, batch.at(declaration_.columns.front().name).size(0));
    });
  }

 private:
  StepNetwork(const std::string& path, const StepPackage& package)
      : path_(path),
        declaration_(package.declaration()),
        names_(package.manifest().outputs),
        step_(package.load("step")),
        score_(package.load("score")) {
    int64_t begin = 0;
    for (const TensorSpec& tensor : package.manifest().tensors) {
      const std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.end());
      const auto count = static_cast<int64_t>(tensor.elementCount());
      trained_.emplace_back(tensor.name, package.values().narrow(0, begin, count).view(shape));
      begin += count;
    }
  }

  /// The code reads the parameters in place, where they were pulled to.
  std::vector<torch::Tensor> inputsOf(const Tensors& batch) const {
    std::vector<torch::Tensor> inputs;
    for (const auto& [name, tensor] : trained_) inputs.push_back(tensor);
    for (const ColumnSpec& column : declaration_.columns) inputs.push_back(batch.at(column.name));
    for (const auto& rows : declaration_.rows) {
      std::vector<int64_t> shape = batch.at(rows.column).sizes().vec();
      shape.push_back(declaration_.tables[rows.table].dim);
      inputs.push_back(batch.at(rows.name).view(shape));
    }
    return inputs;
  }

  const std::string path_;
  const ModelDeclaration declaration_;
  const std::vector<std::string> names_;  ///< of the outputs of "score"
  CompiledGraph step_, score_;
  std::vector<std::pair<std::string, torch::Tensor>> trained_;
};

}  // namespace

std::shared_ptr<Network> loadStepNetwork(const std::string& path) {
  return std::make_shared<StepNetwork>(path);
}

}  // namespace psd
