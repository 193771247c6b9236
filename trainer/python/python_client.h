#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "trainer/client/client.h"
#include "trainer/python/array_arguments.h"
#include "trainer/python/device_memory.h"
#include "trainer/python/errors.h"
#include "trainer/python/owned_client.h"
#include "trainer/python/python_fragments.h"
#include "trainer/python/python_rows.h"

namespace psd::python {

/// A call in progress, which keeps its arrays alive. With the GIL.
template <class Info>
class PythonPending {
 public:
  /// Used on the client's thread.
  struct Call {
    Pending<Info> pending;
    /// Called after a successful answer, for the rest of the work; also keeps the arrays alive.
    std::function<Status()> answered;
    DeviceMemory* memory = nullptr;  // of the values that may initialize a model; null: host memory
    bool answerTaken = false;

    bool finished() const { return answerTaken || pending.finished(); }
    Result<Info> wait() {
      Result<Info> info = pending.wait();
      blockIfPythonIsFinalizing();
      answerTaken = true;
      const std::function<Status()> last = std::exchange(answered, nullptr);
      if (memory) PSD_RETURN_IF_ERROR(memory->endInitialization());
      if (info.ok()) PSD_RETURN_IF_ERROR(last());
      return info;
    }
  };

  /// Starts a call, on the client's thread.
  using Work = std::function<std::shared_ptr<Call>(Client&)>;

  PythonPending(std::shared_ptr<OwnedClient> client, std::shared_ptr<Call> call)
      : client_(std::move(client)), call_(std::move(call)) {}
  PythonPending(PythonPending&&) noexcept = default;
  PythonPending& operator=(PythonPending&&) noexcept = default;
  ~PythonPending() {
    if (call_) client_->holdUntil([call = std::move(call_)] { return call->finished(); });
  }

  bool done() const {
    return !call_ || client_->run([call = call_](Client&) { return call->pending.done(); });
  }

  Info wait() {
    if (!call_) raise({ErrorCode::invalidArgument, "wait() was called already: a call has one answer"});
    return take(client_->run([call = std::exchange(call_, nullptr)](Client&) { return call->wait(); }));
  }

 private:
  std::shared_ptr<OwnedClient> client_;
  std::shared_ptr<Call> call_;  // null once waited for
};

/// A push that sends final elements of its gradient while others are computed: PartialPush. With the GIL.
class PythonPartialPush {
 public:
  /// Used on the client's thread, except `unfinished`, which is guarded by the GIL. Keeps the arrays alive
  /// until the answer arrives.
  struct Push {
    bool unfinished = true;
    std::unique_ptr<PartialPush> partial;
    ConstValues gradient;
    std::shared_ptr<RowBatch> rows;
    DeviceMemory* memory = nullptr;  // of the gradient; null: it is in host memory
    DeviceMemory::HostCopy copy;     // sent instead of the gradient; null: the gradient itself is sent
    Status onDevice;                 // the first CUDA error

    void ready(uint64_t begin, uint64_t count);
    Pending<PushInfo> finish();
  };

  /// `array`: the gradient's Python object, if it is on `device`.
  PythonPartialPush(std::shared_ptr<OwnedClient> client, std::shared_ptr<Push> push, nanobind::object array,
                    std::optional<CudaDevice> device)
      : client_(std::move(client)), push_(std::move(push)), array_(std::move(array)), device_(device) {}
  PythonPartialPush(PythonPartialPush&&) = default;
  PythonPartialPush& operator=(PythonPartialPush&&) = default;
  ~PythonPartialPush();

  void ready(uint64_t begin, uint64_t count);
  PythonPending<PushInfo> finish();

 private:
  void checkOpen() const;

  std::shared_ptr<OwnedClient> client_;
  std::shared_ptr<Push> push_;  // null once finished
  nanobind::object array_;
  std::optional<CudaDevice> device_;
};

/// The arguments of a push, from Python.
struct PushArguments {
  nanobind::handle gradient;
  GradientInfo behind = 1;
  std::vector<uint64_t> basis;
  const PythonRows* rows = nullptr;
};

/// The client behind psd.Client, with plain values and arrays. With the GIL.
class PythonClient {
 public:
  /// `onEvent(what, line)`: see ClientOptions::onEvent. With ClientOptions::cudaDevice all arrays of values
  /// and gradients must be on that device; ids and rows stay in host memory.
  PythonClient(ClientOptions options, nanobind::object onEvent);

  JoinInfo join(const Membership& membership, const ModelSpec& model, nanobind::handle initialValues);
  JoinInfo observe(const ModelSpec& model);
  PullInfo pull(nanobind::handle destination, const PythonRows* rows);
  PythonPending<PullInfo> beginPull(nanobind::handle destination, const PythonRows* rows);
  /// The next three calls assign the push the step number step() + 1. step() is that of the last push that
  /// was started, even if a signal has ended the call.
  PushInfo push(const PushArguments& arguments);
  PythonPending<PushInfo> beginPush(const PushArguments& arguments);
  PythonPartialPush partialPush(const PushArguments& arguments);
  PythonPending<RoundDue> roundDue(Version version);
  /// Under a policy of local steps, after join(). `parameters`: the array passed to join(), with which a
  /// daemon that has lost its model is initialized.
  PythonFragments fragments(nanobind::handle parameters, nanobind::handle spare);
  AssignedSamples takeSamples(const SamplesRequest& request);
  void report(uint64_t step, const std::map<std::string, double>& values);
  PingInfo ping(uint64_t calls, uint32_t outstanding);
  /// An empty batch of rows of the model's tables.
  PythonRows rows() const;
  void leave();
  void interrupt() { client_->interrupt(); }
  void close() { client_->close(); }
  uint64_t step() const { return step_; }
  uint64_t bytesPulled();
  uint64_t bytesPushed();

 private:
  /// Throws if a partial push is unfinished: a later push would wait for it, and only this thread can finish
  /// it.
  void checkNoUnfinishedPush() const;
  /// Called after join() or observe(): reads how rows are divided and which memory the client uses.
  void begin();
  /// The device on which arrays must be; null: host memory. Throws if the client is closed, since the
  /// device's stream is destroyed then.
  const CudaDevice* device() const;
  /// The work of the client's thread. A push has its step number already.
  using PullWork = PythonPending<PullInfo>::Work;
  using PushWork = PythonPending<PushInfo>::Work;
  PullWork makePull(nanobind::handle destination, const PythonRows* rows);
  PullWork makePullToDevice(const Values& destination, std::shared_ptr<RowBatch> rows);
  PushWork makePush(const PushArguments& arguments);
  PushWork makePushFromDevice(const PushArguments& arguments, const ConstValues& gradient);

  const std::shared_ptr<OwnedClient> client_ = std::make_shared<OwnedClient>();
  std::vector<TableSpec> tables_;
  uint32_t rowShards_ = 1, daemons_ = 1;  // see RowBatch
  JoinInfo joined_;                       // after join()
  uint64_t step_ = 0;                     // of the last push that was started
  std::weak_ptr<PythonPartialPush::Push> newestPartial_;
  std::optional<CudaDevice> device_;  // nothing: arrays are in host memory
  DeviceMemory* memory_ = nullptr;    // of the device; owned by the client's thread
  /// The values with which the trainer initializes a daemon without a model: those of its last pull of
  /// parameters, or else the initial ones. Used on the client's thread.
  const std::shared_ptr<ConstValues> newest_ = std::make_shared<ConstValues>();
};

}  // namespace psd::python
