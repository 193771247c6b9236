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
  std::vector<std::string> features;  ///< as /proc/cpuinfo has them: "avx2", …

  /// That of this machine.
  static Processor here();
};

/// What a compiled training step, a .pt2, says of itself beside psd.json: psd_step.json, as
/// scripts/export_step.py writes it. A value type.
struct StepManifest {
  std::string torch;                 ///< of which release of LibTorch its code is: "2.11.0"
  Processor processor;               ///< what its code may use of one
  std::vector<TensorSpec> tensors;   ///< what is trained, in the order of its values and gradients
  std::vector<std::string> outputs;  ///< of its score, in order
  std::map<std::string, uint32_t, std::less<>> checksums;  ///< CRC-32 of each file in it, by name

  /// Whether this program with that LibTorch can run it on that processor; the error says why not, and what
  /// would be right.
  Status checkRunsOn(std::string_view torchRelease, const Processor& processor) const;
};

/// The error names the place in the document, and `origin`.
Result<StepManifest> readStepManifest(std::string_view json, const std::string& origin);

}  // namespace psd
