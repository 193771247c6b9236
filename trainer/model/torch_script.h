#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// The parameters of a TorchScript module, in host memory. Free of LibTorch for those who include it. Owned
/// by one thread.
class TorchScriptFile {
 public:
  /// The error names the path.
  static Result<TorchScriptFile> open(const std::string& path);
  TorchScriptFile(TorchScriptFile&&) noexcept;
  ~TorchScriptFile();

  /// The parameter of a qualified name ("fc1.weight"), as it is once it has been read: f32. Nothing where
  /// there is none.
  std::optional<TensorSpec> find(const std::string& name) const;
  /// Reads all elements of one that find() gives. An Error where it is not of a floating-point type.
  Status read(const std::string& name, std::span<float> into) const;

 private:
  struct Parameters;
  explicit TorchScriptFile(std::unique_ptr<Parameters> parameters);
  std::unique_ptr<Parameters> parameters_;
};

}  // namespace psd
