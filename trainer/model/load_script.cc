#include "trainer/model/load_script.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/import.h>

namespace psd {

Result<torch::jit::Module> loadScript(const std::string& path, torch::jit::ExtraFilesMap& extra) {
  try {
    return torch::jit::load(path, c10::Device(c10::kCPU), extra);
  } catch (const std::exception& exception) {
    const auto* torchError = dynamic_cast<const c10::Error*>(&exception);
    const std::string why = torchError ? torchError->what_without_backtrace() : exception.what();
    return Error{ErrorCode::io, "'" + path + "' is not a TorchScript file, which torch.jit.save writes: " +
                                    why.substr(0, std::min(why.find('\n'), why.find(". ")))};
  }
}

}  // namespace psd
