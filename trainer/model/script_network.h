#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace psd {

class Network;

/// Suffix of TorchScript files for --model.
inline constexpr std::string_view kScriptSuffix = ".pt";

/// Loads a user's own model: a TorchScript file of torch.jit.save() whose forward, (Dict[str, Tensor]) ->
/// Dict[str, Tensor], maps the columns and rows declared in its psd.json to ModelOutputs. See
/// docs/guides/own_models.md. Throws NetworkError, which names the file.
std::shared_ptr<Network> loadScriptNetwork(const std::string& path);

}  // namespace psd
