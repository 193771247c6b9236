// Stubs of the readers of users' own models, which PSD_LEAN omits.

#include "trainer/model/network.h"
#include "trainer/model/script_network.h"
#include "trainer/model/step_network.h"
#include "trainer/model/torch_script.h"

namespace psd {
namespace {

std::string absent(const std::string& path) {
  return "'" + path +
         "': this build (PSD_LEAN) reads no TorchScript and no compiled steps; build the preset release";
}

}  // namespace

std::shared_ptr<Network> loadScriptNetwork(const std::string& path) { throw NetworkError(absent(path)); }
std::shared_ptr<Network> loadStepNetwork(const std::string& path) { throw NetworkError(absent(path)); }

struct TorchScriptFile::Parameters {};
TorchScriptFile::TorchScriptFile(TorchScriptFile&&) noexcept = default;
TorchScriptFile::~TorchScriptFile() = default;
Result<TorchScriptFile> TorchScriptFile::open(const std::string& path) {
  return Error{ErrorCode::invalidArgument, absent(path)};
}
std::optional<TensorSpec> TorchScriptFile::find(const std::string&) const { return {}; }
Status TorchScriptFile::read(const std::string&, std::span<float>) const { return {}; }

}  // namespace psd
