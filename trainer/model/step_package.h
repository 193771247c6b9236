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

/// A graph compiled to machine code. Owned by one thread.
class CompiledGraph {
 public:
  CompiledGraph(std::string name, std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner);
  CompiledGraph(CompiledGraph&&) noexcept;
  ~CompiledGraph();

  /// Runs the graph. Throws NetworkError if it fails or does not return `outputs` tensors.
  std::vector<torch::Tensor> run(const std::vector<torch::Tensor>& inputs, size_t outputs) const;

 private:
  std::string name_;
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
};

/// A .pt2 file written by scripts/export_step.py: an AOTInductor archive with the graphs "step" and "score"
/// and psd's metadata. Errors are NetworkErrors that name the file. Does not load code before load(). Owned
/// by one thread.
class StepPackage {
 public:
  explicit StepPackage(const std::string& path);
  ~StepPackage();

  const ModelDeclaration& declaration() const { return declaration_; }
  const StepManifest& manifest() const { return manifest_; }
  /// The concatenated values of manifest().tensors; finite.
  const torch::Tensor& values() const { return values_; }

  /// Loads the code of a graph, which runs with all privileges of this process.
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
