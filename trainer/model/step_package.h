#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "trainer/task/declaration.h"
#include "trainer/task/step_manifest.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}
namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace psd {

/// A graph that was compiled to machine code. Owned by one thread.
class CompiledGraph {
 public:
  CompiledGraph(std::string name, std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner);
  CompiledGraph(CompiledGraph&&) noexcept;
  ~CompiledGraph();

  /// As many as it was exported with; else a NetworkError.
  std::vector<torch::Tensor> run(const std::vector<torch::Tensor>& inputs, size_t outputs) const;

 private:
  std::string name_;
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
};

/// A .pt2 as scripts/export_step.py writes it: an archive of AOTInductor with graphs "step" and "score", and
/// what psd has to know of them. What is wrong with it is a NetworkError that names the file. None of its
/// code is loaded before load(). Owned by one thread.
class StepPackage {
 public:
  explicit StepPackage(const std::string& path);
  ~StepPackage();

  const ModelDeclaration& declaration() const { return declaration_; }
  const StepManifest& manifest() const { return manifest_; }
  /// The values of manifest().tensors, one after the other; finite.
  const torch::Tensor& values() const { return values_; }

  /// Loads the code of a graph, which runs from then on with all that this process may do.
  CompiledGraph load(std::string_view graph) const;

 private:
  std::string read(const std::string& record) const;
  std::string readChecked(const std::string& record) const;
  std::vector<std::string> records() const;
  void readValues();

  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  StepManifest manifest_;
  ModelDeclaration declaration_;
  torch::Tensor values_;
};

}  // namespace psd
