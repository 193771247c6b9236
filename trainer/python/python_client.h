#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "trainer/client/client.h"
#include "trainer/python/array_arguments.h"
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
    std::function<void()>
        answered;  ///< called when its answer is there, without an error; holds the arrays too
  };

  PythonPending(std::shared_ptr<OwnedClient> client, std::shared_ptr<Call> call)
      : client_(std::move(client)), call_(std::move(call)) {}
  PythonPending(PythonPending&&) = default;
  PythonPending& operator=(PythonPending&&) = default;
  ~PythonPending() {
    if (call_) client_->holdUntil([call = std::move(call_)] { return call->pending.finished(); });
  }

  bool done() const {
    return !call_ || client_->run([call = call_](Client&) { return call->pending.done(); });
  }

  Info wait() {
    if (!call_) raise({ErrorCode::invalidArgument, "wait() was called before: a call has one answer"});
    return take(client_->run([call = std::exchange(call_, nullptr)](Client&) {
      Result<Info> info = call->pending.wait();
      if (info.ok()) call->answered();
      return info;
    }));
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
  };

  PythonPartialPush(std::shared_ptr<OwnedClient> client, std::shared_ptr<Push> push)
      : client_(std::move(client)), push_(std::move(push)) {}
  PythonPartialPush(PythonPartialPush&&) = default;
  PythonPartialPush& operator=(PythonPartialPush&&) = default;
  ~PythonPartialPush();

  void ready(uint64_t begin, uint64_t count);
  PythonPending<PushInfo> finish();

 private:
  void checkOpen() const;

  std::shared_ptr<OwnedClient> client_;
  std::shared_ptr<Push> push_;  // null once finished
};

/// What a push is made of, as Python gives it.
struct PushArguments {
  Step step;
  nanobind::handle gradient;
  Behind behind = 1;
  std::vector<uint64_t> basis;
  const PythonRows* rows = nullptr;
};

/// A client in plain values and arrays, which psd.Client is made of. With the GIL.
class PythonClient {
 public:
  /// `onEvent(what, line)` is called as ClientOptions::onEvent is.
  PythonClient(ClientOptions options, nanobind::object onEvent);

  JoinInfo join(const Membership& membership, const ModelSpec& model, nanobind::handle initialValues);
  JoinInfo observe(const ModelSpec& model);
  PythonPending<PullInfo> pull(nanobind::handle destination, const PythonRows* rows);
  PythonPending<PushInfo> push(const PushArguments& arguments);
  PythonPartialPush beginPush(const PushArguments& arguments);
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
  uint64_t bytesPulled();
  uint64_t bytesPushed();

 private:
  /// A later push would wait for an earlier one that this thread has yet to finish.
  void checkNoneUnfinished() const;
  /// How rows are divided, once it has joined or observes.
  void noteRows();

  const std::shared_ptr<OwnedClient> client_ = std::make_shared<OwnedClient>();
  std::vector<TableSpec> tables_;
  uint32_t rowShards_ = 1, daemons_ = 1;  // as a RowBatch has them
  JoinInfo joined_;                       // once it has joined
  std::weak_ptr<PythonPartialPush::Push> newestPartial_;
  /// What the trainer brings to a daemon that has no model: the values of its last pull of parameters, before
  /// that the initial ones. Used on the client's thread.
  const std::shared_ptr<ConstValues> newest_ = std::make_shared<ConstValues>();
};

}  // namespace psd::python
