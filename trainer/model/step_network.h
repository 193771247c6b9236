#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace psd {

class Network;

/// Suffix of compiled steps for --model.
inline constexpr std::string_view kStepSuffix = ".pt2";

/// Loads a user's own model as machine code, written by scripts/export_model: see StepPackage and
/// docs/guides/own_models.md. Throws NetworkError, which names the file.
std::shared_ptr<Network> loadStepNetwork(const std::string& path);

}  // namespace psd
