#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// The parameters of a TorchScript module, in host memory. Does not include LibTorch. Owned by one thread.
class TorchScriptFile {
 public:
  /// Errors name the path.
  static Result<TorchScriptFile> open(const std::string& path);
  TorchScriptFile(TorchScriptFile&&) noexcept;
  ~TorchScriptFile();

  /// The parameter with a qualified name ("fc1.weight"), as f32, the type in which it is read; nullopt if
  /// there is none.
  std::optional<TensorSpec> find(const std::string& name) const;
  /// Reads all elements of a parameter that find() returned. An Error if its type is not floating-point.
  Status read(const std::string& name, std::span<float> into) const;

 private:
  struct Parameters;
  explicit TorchScriptFile(std::unique_ptr<Parameters> parameters);
  std::unique_ptr<Parameters> parameters_;
};

}  // namespace psd
