// The calls of Client that not every client offers.

#include "trainer/client/api/client.h"
#include "trainer/client/api/failed_call.h"

namespace psd {
namespace {

Error noOperations() { return {ErrorCode::notReady, "this client makes no calls of an operator"}; }
Error noFragments() { return {ErrorCode::notReady, "this client exchanges no fragments of a model"}; }

Error noBuffers() { return {ErrorCode::notReady, "this client does not exchange buffers"}; }
Error noStateExchange() { return {ErrorCode::notReady, "this client exchanges no optimizer state"}; }

}  // namespace

Pending<RoundDue> Client::roundDue(Version version) {
  if (Rounds* const own = rounds()) return own->roundDue(version);
  return failedCall<RoundDue>({ErrorCode::notReady, "this client receives no round notifications"});
}

Pending<PullInfo> Client::pullFragment(ArenaValues destination, uint32_t fragment) {
  if (Fragments* const own = fragments()) return own->pullFragment(destination, fragment);
  return failedCall<PullInfo>(noFragments());
}

Pending<RoundDue> Client::fragmentDue(const std::vector<Version>& basis, uint32_t fragment) {
  if (Fragments* const own = fragments()) return own->fragmentDue(basis, fragment);
  return failedCall<RoundDue>(noFragments());
}

Result<FormedGroup> Client::formAveragingGroup(uint64_t after, const AveragingMember& where) {
  if (GradientAveraging* const own = gradientAveraging()) return own->formAveragingGroup(after, where);
  return Error{ErrorCode::notReady, "this client does not form groups"};
}

Result<MachineProgress> Client::progress(bool settled) {
  if (TrainingProgress* const own = trainingProgress()) return own->progress(settled);
  return Error{ErrorCode::notReady, "this client is not a bridge"};
}

Result<OptimizerState> Client::fetchState() {
  return stateExchange() ? stateExchange()->fetchState() : noStateExchange();
}

Status Client::restoreState(const StateToRestore& state) {
  return stateExchange() ? stateExchange()->restoreState(state) : Status(noStateExchange());
}

Result<AssignedSamples> Client::takeSamples(const SamplesRequest& request) {
  if (SampleSource* const own = sampleSource()) return own->takeSamples(request);
  return Error{ErrorCode::notReady, "this client has no samples"};
}

Status Client::report(Step step, std::span<const NamedValue> values) {
  Monitoring* const own = monitoring();
  return own ? own->report(step, values) : validateReport(values);
}

Result<std::vector<Rank>> Client::waiters() {
  if (Monitoring* const own = monitoring()) return own->waiters();
  return Error{ErrorCode::notReady, "this client does not know the waiters"};
}

Status Client::setBuffers(std::vector<std::byte> file) {
  return modelBuffers() ? modelBuffers()->setBuffers(std::move(file)) : Status(noBuffers());
}

Result<std::vector<std::byte>> Client::buffers() {
  return modelBuffers() ? modelBuffers()->buffers() : noBuffers();
}

Result<std::vector<std::string>> Client::status() {
  return operations() ? operations()->status() : noOperations();
}

Result<std::vector<std::string>> Client::set(const std::string& assignment) {
  return operations() ? operations()->set(assignment) : noOperations();
}

Result<std::vector<std::string>> Client::checkpoint() {
  return operations() ? operations()->checkpoint() : noOperations();
}

}  // namespace psd
