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

/// A pull or a push under way, with what keeps the arrays that it uses. With the GIL.
template <class Info>
class PythonPending {
 public:
  /// Used on the client's thread.
  struct Call {
    Pending<Info> pending;
    /// Called when its answer is there, without an error, for what is left to do; holds the arrays too.
    std::function<Status()> answered;
    DeviceMemory* memory = nullptr;  // whose values the client may have to bring; null: of the host
    bool waitedFor = false;

    bool finished() const { return waitedFor || pending.finished(); }
    Result<Info> wait() {
      Result<Info> info = pending.wait();
      standStillIfPythonEnds();
      waitedFor = true;
      const std::function<Status()> last = std::exchange(answered, nullptr);
      if (memory) PSD_RETURN_IF_ERROR(memory->brought());
      if (info.ok()) PSD_RETURN_IF_ERROR(last());
      return info;
    }
  };

  /// Begins a call, on the client's thread.
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
    if (!call_) raise({ErrorCode::invalidArgument, "wait() was called before: a call has one answer"});
    return take(client_->run([call = std::exchange(call_, nullptr)](Client&) { return call->wait(); }));
  }

 private:
  std::shared_ptr<OwnedClient> client_;
  std::shared_ptr<Call> call_;  // null once waited for
};

/// A push that sends what is final of its gradient while the rest is being computed: PartialPush. With the
/// GIL.
class PythonPartialPush {
 public:
  /// Used on the client's thread, but for `unfinished`, which is Python's. The arrays stay until the answer
  /// is there.
  struct Push {
    bool unfinished = true;
    std::unique_ptr<PartialPush> partial;
    ConstValues gradient;
    std::shared_ptr<RowBatch> rows;
    DeviceMemory* memory = nullptr;  // of the gradient; null: it is in host memory
    DeviceMemory::HostCopy copy;     // what is sent in the gradient's place
    Status onDevice;                 // whether CUDA has failed

    void ready(uint64_t begin, uint64_t count);
    Pending<PushInfo> finish();
  };

  /// `array`: the gradient as Python gave it, where it is in the memory of `device`.
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

/// What a push is made of, as Python gives it.
struct PushArguments {
  nanobind::handle gradient;
  Behind behind = 1;
  std::vector<uint64_t> basis;
  const PythonRows* rows = nullptr;
};

/// A client in plain values and arrays, which psd.Client is made of. With the GIL.
class PythonClient {
 public:
  /// `onEvent(what, line)` is called as ClientOptions::onEvent is. With ClientOptions::cudaDevice all arrays
  /// of values and gradients are of that device; ids and rows stay in host memory.
  PythonClient(ClientOptions options, nanobind::object onEvent);

  JoinInfo join(const Membership& membership, const ModelSpec& model, nanobind::handle initialValues);
  JoinInfo observe(const ModelSpec& model);
  PullInfo pull(nanobind::handle destination, const PythonRows* rows);
  PythonPending<PullInfo> beginPull(nanobind::handle destination, const PythonRows* rows);
  /// These three number the push: one more than step(), which is that of the newest push that was begun, also
  /// where a signal has ended the call.
  PushInfo push(const PushArguments& arguments);
  PythonPending<PushInfo> beginPush(const PushArguments& arguments);
  PythonPartialPush partialPush(const PushArguments& arguments);
  PythonPending<RoundDue> roundDue(Version version);
  /// Under a policy of fragments, after join(). `parameters`: what was joined with, and is brought to a
  /// daemon that came back without a model.
  PythonFragments fragments(nanobind::handle parameters, nanobind::handle spare);
  DealtSamples takeSamples(const SamplesRequest& request);
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
  /// Throws where no push may follow: a later one would wait for an earlier one that this thread has yet to
  /// finish.
  void checkNoneUnfinished() const;
  /// What comes after it has joined or observes: how rows are divided, and which memory the client uses.
  void begin();
  /// Of the arrays that a call is given; throws where no call may follow, as the device's stream is gone
  /// then.
  const CudaDevice* device() const;
  /// What is left for the client's thread to do. A push has its number already.
  using PullWork = PythonPending<PullInfo>::Work;
  using PushWork = PythonPending<PushInfo>::Work;
  PullWork makePull(nanobind::handle destination, const PythonRows* rows);
  PullWork makePullToDevice(const Values& destination, std::shared_ptr<RowBatch> rows);
  PushWork makePush(const PushArguments& arguments);
  PushWork makePushFromDevice(const PushArguments& arguments, const ConstValues& gradient);

  const std::shared_ptr<OwnedClient> client_ = std::make_shared<OwnedClient>();
  std::vector<TableSpec> tables_;
  uint32_t rowShards_ = 1, daemons_ = 1;  // as a RowBatch has them
  JoinInfo joined_;                       // once it has joined
  uint64_t step_ = 0;                     // of the newest push
  std::weak_ptr<PythonPartialPush::Push> newestPartial_;
  std::optional<CudaDevice> device_;  // nothing: arrays are in host memory
  DeviceMemory* memory_ = nullptr;    // the device's; the client's thread has it
  /// What the trainer brings to a daemon that has no model: the values of its last pull of parameters, before
  /// that the initial ones. Used on the client's thread.
  const std::shared_ptr<ConstValues> newest_ = std::make_shared<ConstValues>();
};

}  // namespace psd::python
