#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace psd {

class Network;

/// How the names of TorchScript files end that --model takes.
inline constexpr std::string_view kScriptSuffix = ".pt";

/// A user's own model: a TorchScript file, as torch.jit.save() writes it, whose forward is (Dict[str,
/// Tensor]) -> Dict[str, Tensor], from the columns and rows that its psd.json declares to ModelOutputs.
/// docs/own_models.md tells of it. Throws NetworkError, which names the file.
std::shared_ptr<Network> loadScriptNetwork(const std::string& path);

}  // namespace psd
