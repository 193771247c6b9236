#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// A kind of processor. A value type.
struct Processor {
  std::string machine;                ///< "x86_64"
  std::vector<std::string> features;  ///< as in /proc/cpuinfo: "avx2", …

  /// The processor of this machine.
  static Processor here();
};

/// The metadata of a compiled training step (.pt2) besides psd.json: psd_step.json, written by
/// scripts/export_step.py. A value type.
struct StepManifest {
  std::string torch;                 ///< the LibTorch release it was compiled for: "2.11.0"
  Processor processor;               ///< the CPU features that its code may use
  std::vector<TensorSpec> tensors;   ///< the trained tensors, in the order of values and gradients
  std::vector<std::string> outputs;  ///< names of the score's outputs, in order
  std::map<std::string, uint32_t, std::less<>> checksums;  ///< CRC-32 of each file in the archive, by name

  /// Checks that a program with this LibTorch release can run it on `processor`; the error states the
  /// mismatch and what is expected.
  Status checkRunsOn(std::string_view torchRelease, const Processor& processor) const;
};

/// Errors name the key in the document, and `origin`.
Result<StepManifest> readStepManifest(std::string_view json, const std::string& origin);

}  // namespace psd
