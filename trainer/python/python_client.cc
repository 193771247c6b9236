#include "trainer/python/python_client.h"

#include <chrono>
#include <cstring>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "common/types/model_layout.h"
#include "trainer/client/api/failed_call.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

std::vector<Version> versionsOf(const std::vector<uint64_t>& numbers) {
  std::vector<Version> versions;
  versions.reserve(numbers.size());
  for (const uint64_t number : numbers) versions.push_back(Version{number});
  return versions;
}

std::shared_ptr<RowBatch> rowBatchOf(const PythonRows* rows) { return rows ? rows->shared() : nullptr; }

}  // namespace

PythonPartialPush::~PythonPartialPush() {
  if (!push_) return;
  push_->unfinished = false;
  client_->holdUntil([push = std::move(push_)] {
    push->partial = nullptr;  // abandons the push
    return true;
  });
}

Status PythonPartialPush::Push::ready(uint64_t begin, uint64_t count) {
  if (!memory) {
    partial->ready(begin, count);
    return {};
  }
  const std::lock_guard lock(mutex);
  computed.push_back({begin, count});
  const Result<bool> idle = memory->idle();
  if (!idle.ok()) onDevice = idle.status();
  if (onDevice.ok() && *idle) report();  // others are reported later: the backward pass continues
  return {};
}

Pending<PushInfo> PythonPartialPush::Push::finish() {
  const std::lock_guard lock(mutex);
  if (memory && onDevice.ok()) onDevice = memory->wait();
  if (onDevice.ok()) report();
  if (onDevice.ok()) return partial->finish();
  partial = nullptr;  // abandons the push
  return failedCall<PushInfo>(onDevice.error());
}

void PythonPartialPush::Push::report() {
  for (const auto& [begin, count] : std::exchange(computed, {})) {
    const auto from = spanOf(gradient).subspan(begin, count);
    if (copy && onDevice.ok()) onDevice = memory->copy(std::span(*copy).subspan(begin, count), from);
    if (onDevice.ok()) partial->ready(begin, count);
  }
}

void PythonPartialPush::checkOpen() const {
  if (!push_) raise({ErrorCode::invalidArgument, "the push is finished already"});
}

void PythonPartialPush::ready(uint64_t begin, uint64_t count) {
  checkOpen();
  const uint64_t elements = push_->elements;
  if (begin > elements || count > elements - begin) {
    raise({ErrorCode::invalidArgument, "elements beyond the end of the gradient were reported"});
  }
  client_->checkUsable();
  if (device_) exportDlpack(array_, *device_);  // the elements are final once the pending work has ended
  check(client_->run([push = push_, begin, count](Client&) { return push->ready(begin, count); }));
}

PythonPending<PushInfo> PythonPartialPush::finish() {
  checkOpen();
  using Answer = PythonPending<PushInfo>;
  client_->checkUsable();
  push_->unfinished = false;
  const std::shared_ptr<Push> push = std::exchange(push_, nullptr);
  return {client_, client_->run([push](Client&) {
            return std::make_shared<Answer::Call>(
                Answer::Call{push->finish(), [push] { return Status(); }, push->memory});
          })};
}

void PythonClient::Newest::set(ConstValues values) {
  const std::lock_guard lock(mutex_);
  std::swap(values_, values);
}

std::span<const float> PythonClient::Newest::get() {
  const std::lock_guard lock(mutex_);
  given_ = values_;
  return spanOf(given_);
}

void PythonClient::Newest::release() {
  const std::lock_guard lock(mutex_);
  given_ = {};
}

PythonClient::PythonClient(const ClientOptions& options) : client_(std::make_shared<SharedClient>(options)) {
  if (options.cudaDevice < 0) return;
  memory_ = take(client_->run([device = options.cudaDevice, keepWaiting = client_->keepWaiting()](Client&) {
    return DeviceMemory::make(device, keepWaiting);
  }));
  device_ = memory_->device();
}

const CudaDevice* PythonClient::device() const {
  client_->checkUsable();
  return device_ ? &*device_ : nullptr;
}

JoinInfo PythonClient::join(const Membership& membership, const ModelSpec& model, nb::handle initialValues) {
  const ConstValues given = constValuesOf(initialValues, "the initial values", device());
  const ConstValues initial = memory_ ? given : aligned(given);
  const ArrayForm form = form_ = ArrayForm(model);
  const JoinInfo info = take(client_->run([membership, model, form, initial, newest = newest_,
                                           memory = memory_](Client& client) -> Result<JoinInfo> {
    if (memory) memory->expect(form);
    if (memory) PSD_RETURN_IF_ERROR(memory->wait());
    newest->set(initial);
    Result<JoinInfo> joined = client.join(membership, model, [newest, memory, form] {
      return form(memory ? memory->beginInitialization(newest->get()) : newest->get());
    });
    newest->release();
    if (memory) PSD_RETURN_IF_ERROR(memory->endInitialization());
    return joined;
  }));
  tables_ = model.tables;
  joined_ = info;
  begin();
  return info;
}

JoinInfo PythonClient::observe(const ModelSpec& model) {
  const JoinInfo info = take(client_->run([model](Client& client) { return client.observe(model); }));
  form_ = ArrayForm(info.model);
  if (memory_) memory_->expect(form_);
  tables_ = info.model.tables;
  begin();
  return info;
}

void PythonClient::begin() {
  std::tie(rowShards_, daemons_) = client_->run([memory = memory_](Client& client) {
    if (memory) memory->begin(client);
    const RowBatch batch = client.makeRowBatch();
    return std::pair(batch.shards(), batch.daemons());
  });
}

PullInfo PythonClient::pull(nb::handle destination, const PythonRows* rows) {
  return PythonPending<PullInfo>::waitFor(*client_, makePull(destination, rows));
}

PythonPending<PullInfo> PythonClient::beginPull(nb::handle destination, const PythonRows* rows) {
  return {client_, client_->run(makePull(destination, rows))};
}

PythonClient::PullWork PythonClient::makePull(nb::handle destination, const PythonRows* rows) {
  using Call = PythonPending<PullInfo>::Call;
  const Values given = valuesOf(destination, "the destination of a pull", device());
  if (memory_) return makePullToDevice(given, rowBatchOf(rows));
  const Values values = isAligned(given.data()) ? given : alignedArray(given.size());
  return [given, values, form = form_, rows = rowBatchOf(rows), newest = newest_](Client& client) {
    const auto answered = [given, values, rows, newest] {
      if (given.data() != values.data()) std::memcpy(given.data(), values.data(), given.nbytes());
      if (values.size() > 0) newest->set(ConstValues(values));  // not for pulls of rows only
      return Status();
    };
    return std::make_shared<Call>(Call{client.pull(form(spanOf(values)), rows.get()), answered});
  };
}

PythonClient::PullWork PythonClient::makePullToDevice(const Values& destination,
                                                      std::shared_ptr<RowBatch> rows) {
  using Call = PythonPending<PullInfo>::Call;
  return [destination, form = form_, rows = std::move(rows), newest = newest_,
          memory = memory_](Client& client) {
    const DeviceMemory::HostCopy copy = memory->hostCopyFor(spanOf(destination));
    const auto answered = [destination, copy, rows, newest, memory]() -> Status {
      if (copy) PSD_RETURN_IF_ERROR(memory->copy(spanOf(destination), *copy));
      if (destination.size() > 0) newest->set(ConstValues(destination));  // not for pulls of rows only
      return {};
    };
    // Pending work on the device may still read the previous values.
    const Status free = memory->wait();
    return std::make_shared<Call>(
        Call{free.ok() ? client.pull(form(copy ? std::span(*copy) : spanOf(destination)), rows.get())
                       : failedCall<PullInfo>(free.error()),
             answered, memory});
  };
}

Status PythonClient::Steps::awaitTurn() {
  if (starter_ == std::this_thread::get_id()) {
    return {ErrorCode::invalidArgument, "this client is called from within a callback of its own"};
  }
  while (!mutex_.try_lock_until(std::chrono::system_clock::now() + std::chrono::milliseconds(50))) {
    if (!keepWaiting_()) return {ErrorCode::interrupted, "the wait for another thread's push was ended"};
  }
  return {};
}

PushInfo PythonClient::push(const PushArguments& arguments) {
  return PythonPending<PushInfo>::waitFor(*client_, makePush(arguments));
}

PythonPending<PushInfo> PythonClient::beginPush(const PushArguments& arguments) {
  return {client_, client_->run(makePush(arguments))};
}

PythonClient::PushWork PythonClient::makePush(const PushArguments& arguments) {
  using Call = PythonPending<PushInfo>::Call;
  checkNoUnfinishedPush();
  const ConstValues given = constValuesOf(arguments.gradient, "the gradient of a push", device());
  if (memory_) return makePushFromDevice(arguments, given);
  const ConstValues gradient = aligned(given);
  return [steps = steps_, behind = arguments.behind, gradient, form = form_,
          basis = versionsOf(arguments.basis), rows = rowBatchOf(arguments.rows)](Client& client) {
    const auto start = [&](Step step) {
      return client.push(step, form(spanOf(gradient)), behind, basis, rows.get());
    };
    return std::make_shared<Call>(
        Call{steps->inOrder(start, failedCall<PushInfo>), [gradient, rows] { return Status(); }, nullptr});
  };
}

PythonClient::PushWork PythonClient::makePushFromDevice(const PushArguments& arguments,
                                                        const ConstValues& gradient) {
  using Call = PythonPending<PushInfo>::Call;
  return
      [steps = steps_, behind = arguments.behind, gradient, form = form_, basis = versionsOf(arguments.basis),
       rows = rowBatchOf(arguments.rows), memory = memory_](Client& client) {
        const DeviceMemory::HostCopy copy = memory->hostCopyFor(spanOf(gradient));
        const Status there = copy ? memory->copy(*copy, spanOf(gradient)) : memory->wait();
        const ConstArenaValues sent = form(copy ? std::span<const float>(*copy) : spanOf(gradient));
        const auto start = [&](Step step) { return client.push(step, sent, behind, basis, rows.get()); };
        return std::make_shared<Call>(Call{
            there.ok() ? steps->inOrder(start, failedCall<PushInfo>) : failedCall<PushInfo>(there.error()),
            [gradient, copy, rows] { return Status(); }, memory});
      };
}

PythonPartialPush PythonClient::partialPush(const PushArguments& arguments) {
  checkNoUnfinishedPush();
  const auto push = std::make_shared<PythonPartialPush::Push>();
  push->gradient = constValuesOf(arguments.gradient, "the gradient of a push", device());
  push->rows = rowBatchOf(arguments.rows);
  push->memory = memory_;
  // Its destructor abandons the push if a signal ends the run() below.
  PythonPartialPush begun(client_, push, device_ ? nb::borrow<nb::object>(arguments.gradient) : nb::object(),
                          device_);
  const std::vector<Version> basis = versionsOf(arguments.basis);
  client_->run([&, push](Client& client) {
    if (push->memory) push->copy = push->memory->hostCopyFor(spanOf(push->gradient));
    const ConstArenaValues sent =
        form_(push->copy ? std::span<const float>(*push->copy) : spanOf(push->gradient));
    const auto start = [&](Step step) {
      return client.beginPush(step, sent, arguments.behind, basis, push->rows.get());
    };
    push->elements = sent.size();
    push->partial = steps_->inOrder(start, [](const Error& error) -> std::unique_ptr<PartialPush> {
      return std::make_unique<FailedPush>(error);
    });
    return true;
  });
  newestPartial_ = push;
  return begun;
}

void PythonClient::checkNoUnfinishedPush() const {
  client_->checkUsable();
  const std::shared_ptr<PythonPartialPush::Push> before = newestPartial_.lock();
  if (before && before->unfinished) {
    raise({ErrorCode::invalidArgument,
           "the previous partial_push() is not finished: finish() it, or delete it to abandon the push"});
  }
}

PythonPending<RoundDue> PythonClient::roundDue(Version version) {
  using Answer = PythonPending<RoundDue>;
  return {client_, client_->run([version](Client& client) {
            return std::make_shared<Answer::Call>(
                Answer::Call{client.roundDue(version), [] { return Status(); }});
          })};
}

PythonFragments PythonClient::fragments(nb::handle parameters, nb::handle spare) {
  if (joined_.local.period == 0) {
    raise({ErrorCode::invalidArgument, "the daemon's policy has no local steps"});
  }
  if (device_) {
    raise({ErrorCode::invalidArgument,
           "local steps are exchanged in host memory: make a psd.Client without `device` for that"});
  }
  const Values own = valuesOf(parameters, "parameters"), other = valuesOf(spare, "spare");
  const uint64_t elements = joined_.shards.back().begin + joined_.shards.back().count;
  for (const Values& values : {own, other}) {
    if (values.size() != elements || !isAligned(values.data())) {
      raise(
          {ErrorCode::invalidArgument,
           fmt::format("parameters and spare must be arrays of {} elements, from Model.zeros()", elements)});
    }
  }
  return {client_, joined_, own, other};
}

AssignedSamples PythonClient::takeSamples(const SamplesRequest& request) {
  return take(client_->run([request](Client& client) { return client.takeSamples(request); }));
}

void PythonClient::report(uint64_t step, const std::map<std::string, double>& values) {
  std::vector<NamedValue> named;
  for (const auto& [name, value] : values) named.push_back({name, value});
  check(validateReport(named));
  check(client_->run([&](Client& client) { return client.report(Step{step}, named); }));
}

PingInfo PythonClient::ping(uint64_t calls, uint32_t outstanding) {
  return take(client_->run([calls, outstanding](Client& client) { return client.ping(calls, outstanding); }));
}

void PythonClient::setBuffers(const nb::bytes& file) {
  const auto* const data = static_cast<const std::byte*>(file.data());
  check(client_->run([bytes = std::vector<std::byte>(data, data + file.size())](Client& client) {
    return client.setBuffers(bytes);
  }));
}

nb::bytes PythonClient::buffers() {
  const std::vector<std::byte> file = take(client_->run([](Client& client) { return client.buffers(); }));
  return nb::bytes(file.data(), file.size());
}

std::vector<std::string> PythonClient::status() {
  return take(client_->run([](Client& client) { return client.status(); }));
}

std::vector<std::string> PythonClient::set(const std::string& assignment) {
  return take(client_->run([assignment](Client& client) { return client.set(assignment); }));
}

std::vector<std::string> PythonClient::checkpoint() {
  return take(client_->run([](Client& client) { return client.checkpoint(); }));
}

PythonRows PythonClient::rows() const { return {tables_, rowShards_, daemons_}; }

void PythonClient::leave() {
  check(client_->run([](Client& client) { return client.leave(); }));
}

uint64_t PythonClient::bytesPulled() {
  return client_->run([](Client& client) { return client.bytesPulled(); });
}

uint64_t PythonClient::bytesPushed() {
  return client_->run([](Client& client) { return client.bytesPushed(); });
}

}  // namespace psd::python
