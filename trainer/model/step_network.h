#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace psd {

class Network;

/// How the names of compiled steps end that --model takes.
inline constexpr std::string_view kStepSuffix = ".pt2";

/// A user's own model as machine code, by scripts/export_model: see StepPackage. docs/own_models.md tells of
/// it. Throws NetworkError, which names the file.
std::shared_ptr<Network> loadStepNetwork(const std::string& path);

}  // namespace psd
