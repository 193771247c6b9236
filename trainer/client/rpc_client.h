#pragma once

#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/channel.h"
#include "trainer/client/client.h"
#include "trainer/client/coverage.h"
#include "trainer/client/io_thread.h"

namespace psd {

class PushCall;

/// The Client: one Channel after another, on an IoThread. Owned by one thread.
class RpcClient final : public Client {
 public:
  explicit RpcClient(const ClientOptions& options);
  ~RpcClient() noexcept override;

  /// Connects within `timeout`; retries while nobody answers.
  Status connect(std::chrono::milliseconds timeout);

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<std::span<const float>()>& initialValues) override;
  void watch(ConnectionWatcher watcher) override { watcher_ = std::move(watcher); }
  Result<JoinInfo> observe(const ModelSpec& model) override;
  Pending<PullInfo> pull(std::span<float> destination) override;
  Pending<PushInfo> push(Step step, std::span<const float> gradient, uint32_t samples,
                         const std::vector<Version>& basis) override;
  std::unique_ptr<PartialPush> beginPush(Step step, std::span<const float> gradient, uint32_t samples,
                                         const std::vector<Version>& basis) override;
  Result<DealtSamples> takeSamples(const SamplesWish& wish) override;
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override;
  Status leave() override;
  std::span<const float> view() const override {
    return shared_ ? shared_->values() : std::span<const float>();
  }
  std::span<float> writableView() const override {
    return shared_ ? shared_->writableValues() : std::span<float>();
  }
  uint64_t bytesPulled() const override { return bytesPulled_; }
  uint64_t bytesPushed() const override { return bytesPushed_; }

 private:
  friend class PullCall;
  friend class PushCall;

  template <class T>
  using Future = std::shared_future<Result<T>>;

  /// Who this trainer is, from the first join() on.
  struct Trainer {
    Membership membership;
    ModelSpec model;
    std::function<std::span<const float>()> initialValues;
  };

  /// Runs a call on the I/O thread and waits for its result.
  template <class T, class Work>
  Result<T> call(Work work);
  /// Starts a call on the I/O thread, after those started before.
  template <class T>
  Future<T> start(std::function<kj::Promise<Result<T>>()> work);

  /// One attempt at one server; the channel is replaced when it succeeds.
  Status connectOnce(const std::string& server, std::chrono::milliseconds timeout);
  /// One attempt at each server.
  Status connectToAny(std::chrono::milliseconds timeout);
  /// Joins over the channel as it is, and brings values if asked to. The daemon answers the join within
  /// `timeout`, or it fails; 0: however long it takes.
  Status joinOnce(std::chrono::milliseconds timeout);
  JoinInfo describe();

  /// Whether recover() may help.
  bool mayRecover(const Error& error) const;
  /// After a call of connection `broken` failed with `cause`: connects and joins again, and sends what was
  /// not answered; nothing where that has been done since. The error is what to tell the caller.
  Status recover(uint64_t broken, const Error& cause);
  Status comeBack(const Error& cause);
  void endChannel(const Error& why);
  /// Gives how many.
  size_t resendPushes();
  void tell(bool connected, std::string what);

  Status checkSize(const char* what, size_t elements) const;

  const ClientOptions options_;
  const uint64_t incarnation_;
  ConnectionWatcher watcher_;
  std::optional<Trainer> trainer_;
  IoThread io_;
  // These four belong to the I/O thread.
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<Channel> channel_;
  kj::Own<Channel> retired_;                // the one before, until what was under way on it has failed
  std::shared_ptr<EncodedPushes> encoder_;  // of pushes, from one channel to the next; null: they need none
  uint64_t connection_ = 0;                 // counts the channels
  std::string serverVersion_;
  JoinAnswer joined_;
  JoinInfo info_;
  bool gaveUp_ = false;  // recover() failed
  uint64_t elements_ = 0;
  std::vector<Slice> slices_;                    // the channel's
  std::shared_ptr<const SharedModel> shared_;    // the channel's; null where values travel in messages
  std::list<std::shared_ptr<PushCall>> pushes_;  // that may not be answered yet, oldest first
  uint64_t bytesPulled_ = 0;
  uint64_t bytesPushed_ = 0;
};

template <class T, class Work>
Result<T> RpcClient::call(Work work) {
  try {
    return io_.runSync(work);
  } catch (const kj::Exception& exception) {
    // Channel types its own errors; what is left is a timeout.
    if (exception.getType() == kj::Exception::Type::OVERLOADED) {
      return Error{ErrorCode::unavailable, "no answer in time"};
    }
    return Error{ErrorCode::internal, exception.getDescription().cStr()};
  }
}

template <class T>
RpcClient::Future<T> RpcClient::start(std::function<kj::Promise<Result<T>>()> work) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  Future<T> future = promise->get_future().share();
  io_.post([this, promise, work = std::move(work)] {
    tasks_->add(
        work().then([promise](Result<T> result) { promise->set_value(std::move(result)); },
                    [promise](kj::Exception&& exception) {
                      promise->set_value(Error{ErrorCode::internal, exception.getDescription().cStr()});
                    }));
  });
  return future;
}

}  // namespace psd
