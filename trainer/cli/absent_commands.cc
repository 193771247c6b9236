// Stubs of the commands that PSD_LEAN omits. Each fails with an error that names the preset to build.

#include "trainer/allreduce/gloo_group.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/remote_run.h"

namespace psd {
namespace {

Error absent(const std::string& what) {
  return {ErrorCode::invalidArgument, what + ": not in this build (PSD_LEAN); build the preset release"};
}

}  // namespace

Result<int> runSimulate(const SimulateCommand&, const Connect&, std::ostream&) { return absent("simulate"); }
Status runBridge(const BridgeCommand&, const Connect&) { return absent("bridge"); }
Status runBenchCommand(const BenchCommand&, const Connect&, std::ostream&) { return absent("bench"); }
Status runRowsBenchCommand(const RowsBenchCommand&, const Connect&, std::ostream&) {
  return absent("bench rows");
}
Status runTrainBenchCommand(const TrainBenchCommand&, const Connect&, std::ostream&) {
  return absent("bench train");
}
Result<RemoteRun> openRemoteRun(const TrainCommand&, const std::function<void(const ClientEvent&)>&) {
  return absent("--execute");
}
Result<std::unique_ptr<CollectiveMaker>> makeGlooGroups(const std::string& host) {
  if (!host.empty()) return absent("averages among trainers");
  return std::unique_ptr<CollectiveMaker>();
}

}  // namespace psd
