#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "trainer/client/api/client.h"
#include "trainer/python/array_arguments.h"
#include "trainer/python/device_memory.h"
#include "trainer/python/errors.h"
#include "trainer/python/python_fragments.h"
#include "trainer/python/python_rows.h"
#include "trainer/python/shared_client.h"

namespace psd::python {

/// A call in progress, which keeps its arrays alive. With the GIL.
template <class Info>
class PythonPending {
 public:
  /// Used without the GIL, by one thread at a time.
  struct Call {
    Pending<Info> pending;
    /// Called after a successful answer, for the rest of the work; also keeps the arrays alive.
    std::function<Status()> answered;
    std::shared_ptr<DeviceMemory> memory;  // of the values that may initialize a model; null: host memory

    Result<Info> wait() {
      Result<Info> info = pending.wait();
      if (memory) PSD_RETURN_IF_ERROR(memory->endInitialization());
      if (info.ok()) PSD_RETURN_IF_ERROR(answered());
      return info;
    }
  };

  /// Starts a call, without the GIL.
  using Work = std::function<std::shared_ptr<Call>(Client&)>;

  PythonPending(std::shared_ptr<SharedClient> client, std::shared_ptr<Call> call)
      : client_(std::move(client)), call_(std::move(call)) {}
  PythonPending(PythonPending&&) noexcept = default;
  PythonPending& operator=(PythonPending&&) noexcept = default;
  ~PythonPending() {
    if (call_) client_->holdUntil([call = std::move(call_)] { return call->pending.finished(); });
  }

  bool done() const {
    return !call_ || client_->run([&](Client&) { return call_->pending.done(); });
  }

  /// For a human reader.
  const char* state() const {
    if (!call_) return "answered";
    if (!client_->isUsable()) return "ended";
    return done() ? "done" : "in progress";
  }

  Info wait() {
    if (!call_) raise({ErrorCode::invalidArgument, "wait() was called already: a call has one answer"});
    return waitFor(*client_, [call = std::exchange(call_, nullptr)](Client&) { return call; });
  }
  /// Starts a call, and waits for its answer.
  static Info waitFor(SharedClient& client, const Work& start) {
    std::shared_ptr<Call> call;
    try {
      return take(client.run([&](Client& owned) {
        call = start(owned);
        return call->wait();
      }));
    } catch (...) {  // a call whose wait is ended continues, and needs its arrays
      if (call) client.holdUntil([call] { return call->pending.finished(); });
      throw;
    }
  }

 private:
  std::shared_ptr<SharedClient> client_;
  std::shared_ptr<Call> call_;  // null once waited for
};

/// A push that sends final elements of its gradient while others are computed: PartialPush. With the GIL.
class PythonPartialPush {
 public:
  /// Used without the GIL, except `unfinished`, which is guarded by it. Keeps the arrays alive until the
  /// answer arrives.
  struct Push {
    bool unfinished = true;
    std::unique_ptr<PartialPush> partial;
    ConstValues gradient;
    uint64_t elements = 0;  // of the gradient
    std::shared_ptr<RowBatch> rows;
    std::shared_ptr<DeviceMemory> memory;  // of the gradient; null: it is in host memory
    DeviceMemory::HostCopy copy;           // sent instead of the gradient; null: the gradient itself is sent
    std::mutex mutex;                      // guards the rest
    std::vector<ElementRange> computed;    // by work that the device may not have completed
    Status onDevice;                       // the first CUDA error

    Status ready(uint64_t begin, uint64_t count);
    Pending<PushInfo> finish();

   private:
    /// Reports the computed elements, which are final.
    void report();
  };

  /// `array`: the gradient's Python object, if it is on `device`.
  PythonPartialPush(std::shared_ptr<SharedClient> client, std::shared_ptr<Push> push, nanobind::object array,
                    std::optional<CudaDevice> device)
      : client_(std::move(client)), push_(std::move(push)), array_(std::move(array)), device_(device) {}
  PythonPartialPush(PythonPartialPush&&) = default;
  PythonPartialPush& operator=(PythonPartialPush&&) = default;
  ~PythonPartialPush();

  void ready(uint64_t begin, uint64_t count);
  PythonPending<PushInfo> finish();
  bool finished() const { return push_ == nullptr; }

 private:
  void checkOpen() const;

  std::shared_ptr<SharedClient> client_;
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
  /// With ClientOptions::cudaDevice all arrays of values and gradients must be on that device; ids and rows
  /// stay in host memory.
  explicit PythonClient(const ClientOptions& options);

  JoinInfo join(const Membership& membership, const ModelSpec& model, nanobind::handle initialValues);
  JoinInfo observe(const ModelSpec& model);
  PullInfo pull(nanobind::handle destination, const PythonRows* rows);
  PythonPending<PullInfo> beginPull(nanobind::handle destination, const PythonRows* rows);
  /// The next three calls assign the push the step number step() + 1. step() is that of the last push that
  /// was started, even if a signal has ended the wait for its answer.
  PushInfo push(const PushArguments& arguments);
  PythonPending<PushInfo> beginPush(const PushArguments& arguments);
  PythonPartialPush partialPush(const PushArguments& arguments);
  PythonPending<RoundDue> roundDue(Version version);
  /// Under a policy of local steps, after join(). `parameters`: the array passed to join(), with which a
  /// daemon that has lost its model is initialized.
  PythonFragments fragments(nanobind::handle parameters, nanobind::handle spare);
  /// See StateExchange; arrays are in host memory. fetchState() returns the versions and steps by shard, and
  /// the arrays by name.
  nanobind::tuple fetchState();
  void restoreState(std::vector<uint64_t> steps, const std::map<std::string, nanobind::object>& arrays);
  AssignedSamples takeSamples(const SamplesRequest& request);
  void report(uint64_t step, const std::map<std::string, double>& values);
  PingInfo ping(uint64_t calls, uint32_t outstanding);
  /// See ModelBuffers.
  void setBuffers(const nanobind::bytes& file);
  nanobind::bytes buffers();
  /// See Operations.
  std::vector<std::string> status();
  std::vector<std::string> set(const std::string& assignment);
  std::vector<std::string> checkpoint();
  /// An empty batch of rows of the model's tables.
  PythonRows rows() const;
  void leave();
  void interrupt() { client_->interrupt(); }
  void close() { client_->close(); }
  uint64_t step() const { return steps_->last(); }
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
  /// Work that starts a call.
  using PullWork = PythonPending<PullInfo>::Work;
  using PushWork = PythonPending<PushInfo>::Work;
  PullWork makePull(nanobind::handle destination, const PythonRows* rows);
  PullWork makePullToDevice(const Values& destination, std::shared_ptr<RowBatch> rows);
  PushWork makePush(const PushArguments& arguments);
  PushWork makePushFromDevice(const PushArguments& arguments, const ConstValues& gradient);

  /// The step numbers of pushes. Thread-safe.
  class Steps {
   public:
    explicit Steps(std::function<bool()> keepWaiting) : keepWaiting_(std::move(keepWaiting)) {}
    /// Returns `push(step)`, which starts a push with the next step number, without the GIL: pushes reach the
    /// client in the order of their numbers. Returns `refuse(error)` from within a callback of a push that is
    /// starting, and after a wait for another thread's push that a signal has ended.
    template <class Push, class Refuse>
    auto inOrder(const Push& push, const Refuse& refuse) {
      if (const Status turn = awaitTurn(); !turn.ok()) return refuse(turn.error());
      const std::unique_lock lock(mutex_, std::adopt_lock);
      starter_ = std::this_thread::get_id();
      auto started = push(Step{++last_});
      starter_ = std::thread::id();
      return started;
    }
    uint64_t last() const { return last_; }

   private:
    /// Locks the mutex.
    Status awaitTurn();

    const std::function<bool()> keepWaiting_;
    std::timed_mutex mutex_;  // held while a push starts, which may take long
    std::atomic<std::thread::id> starter_{};
    std::atomic<uint64_t> last_{0};
  };

  /// The values with which the trainer initializes a daemon without a model: those of its last pull of
  /// parameters, or else the initial ones. Thread-safe.
  class Newest {
   public:
    void set(ConstValues values);
    /// Valid until the next call of get() or release().
    std::span<const float> get();
    void release();

   private:
    std::mutex mutex_;  // guards the rest
    ConstValues values_, given_;
  };

  const std::shared_ptr<SharedClient> client_;
  std::vector<TableSpec> tables_;
  uint32_t rowShards_ = 1, daemons_ = 1;  // see RowBatch
  ArrayForm form_;                        // of the model's arrays; after join() or observe()
  JoinInfo joined_;                       // after join()
  const std::shared_ptr<Steps> steps_ = std::make_shared<Steps>(client_->keepWaiting());
  std::weak_ptr<PythonPartialPush::Push> newestPartial_;
  std::optional<CudaDevice> device_;      // nothing: arrays are in host memory
  std::shared_ptr<DeviceMemory> memory_;  // of the device
  const std::shared_ptr<Newest> newest_ = std::make_shared<Newest>();
};

}  // namespace psd::python
