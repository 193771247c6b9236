#include "trainer/client/client.h"

#include <algorithm>
#include <future>
#include <optional>
#include <thread>

#include <kj/debug.h>

#include "common/os/socket.h"
#include "common/types/model_layout.h"
#include "trainer/client/channel.h"
#include "trainer/client/coverage.h"
#include "trainer/client/io_thread.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kRetryFirst{20};
constexpr milliseconds kRetryMost{500};
constexpr milliseconds kLeaveTimeout{5'000};
// What moves most bytes per second, on TCP in pushes: pulls are as fast with more. docs/performance.md has
// the measurements.
constexpr uint64_t kUnixChunkBytes = 1u << 20;
constexpr uint64_t kTcpChunkBytes = 1u << 20;

milliseconds leftUntil(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(0));
}

/// A result on its way from the I/O thread to the caller's.
template <class T>
class PendingFuture final : public Pending<T>::Impl {
 public:
  PendingFuture(std::future<Result<T>> future, std::function<void(const T&)> whenDone)
      : future_(std::move(future)), whenDone_(std::move(whenDone)) {}
  bool done() const override {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  Result<T> wait() override {
    Result<T> result = future_.get();
    if (result.ok() && whenDone_) whenDone_(*result);
    return result;
  }

 private:
  std::future<Result<T>> future_;
  std::function<void(const T&)> whenDone_;
};

/// start() turns every failure into a result; nothing is left to report.
class NoFailures final : public kj::TaskSet::ErrorHandler {
 public:
  void taskFailed(kj::Exception&&) override {}
};

class RpcClient final : public Client {
 public:
  explicit RpcClient(const ClientOptions& options) : options_(options) {
    io_.runSync([this](kj::AsyncIoContext&) { tasks_ = kj::heap<kj::TaskSet>(noFailures_); });
  }

  ~RpcClient() noexcept override {
    io_.runSync([this](kj::AsyncIoContext&) {
      tasks_ = nullptr;  // calls that nobody waited for
      channel_ = nullptr;
    });
  }

  /// One attempt at one server.
  Status connectOnce(const std::string& server, milliseconds timeout) {
    PSD_ASSIGN_OR_RETURN(Address address, parseAddress(server));
    PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeout));
    chunkBytes_ = options_.chunkBytes;
    if (chunkBytes_ == 0) chunkBytes_ = address.kind == Address::Kind::tcp ? kTcpChunkBytes : kUnixChunkBytes;
    auto version = call<std::string>([&](kj::AsyncIoContext& io) {
      channel_ = kj::heap<Channel>(io, std::move(fd), server, options_.transport);
      return io.provider->getTimer().timeoutAfter(timeout.count() * kj::MILLISECONDS, channel_->hello());
    });
    if (!version.ok()) {
      io_.runSync([this](kj::AsyncIoContext&) { channel_ = nullptr; });
      return version.status();
    }
    serverVersion_ = *version;
    return {};
  }

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<std::span<const float>()>& initialValues) override {
    auto mustInitialize = call<bool>([&](kj::AsyncIoContext&) {
      return channel_->join(membership, model, chunkBytes_, options_.window,
                            {options_.codec, options_.pullCodec});
    });
    if (!mustInitialize.ok()) return mustInitialize.error();
    elements_ = ModelLayout(model).totalElements();
    JoinInfo info = describe();
    StartRole role = StartRole::bringValues;
    if (!*mustInitialize) {
      PSD_ASSIGN_OR_RETURN(role,
                           call<StartRole>([&](kj::AsyncIoContext&) { return channel_->awaitModel(); }));
    }
    if (role == StartRole::bringValues) {
      std::span<const float> values = initialValues();
      PSD_RETURN_IF_ERROR(checkSize("the initial values", values.size()));
      PSD_RETURN_IF_ERROR(call<PushInfo>([&](kj::AsyncIoContext&) {
                            return channel_->bringValues(values, options_.window);
                          }).status());
      info.broughtInitialValues = true;
    }
    return info;
  }

  Result<JoinInfo> observe(const ModelSpec& model) override {
    PSD_ASSIGN_OR_RETURN(ModelSpec served, call<ModelSpec>([&](kj::AsyncIoContext&) {
                           return channel_->observe(model, chunkBytes_);
                         }));
    elements_ = ModelLayout(served).totalElements();
    return describe();
  }

  Pending<PullInfo> pull(std::span<float> destination) override {
    if (Status size = checkSize("the destination of a pull", destination.size()); !size.ok()) {
      return failed<PullInfo>(size.error());
    }
    return start<PullInfo>([=, this] { return channel_->pull(destination, options_.window); },
                           [this](const PullInfo& info) { bytesPulled_ += info.bytes; });
  }

  Pending<PushInfo> push(Step step, std::span<const float> gradient, uint32_t samples,
                         const std::vector<Version>& basis) override {
    std::unique_ptr<PartialPush> push = beginPush(step, gradient, samples, basis);
    push->ready(0, gradient.size());
    return push->finish();
  }

  std::unique_ptr<PartialPush> beginPush(Step step, std::span<const float> gradient, uint32_t samples,
                                         const std::vector<Version>& basis) override;

  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override {
    return call<PingInfo>([&](kj::AsyncIoContext&) { return channel_->ping(calls, outstanding); });
  }

  Status leave() override {
    return call<bool>([&](kj::AsyncIoContext& io) {
             return io.provider->getTimer()
                 .timeoutAfter(kLeaveTimeout.count() * kj::MILLISECONDS, channel_->leave())
                 .then([](Status status) -> Result<bool> {
                   if (!status.ok()) return status.error();
                   return true;
                 });
           })
        .status();
  }

  std::span<const float> view() const override {
    return shared_ && shared_->readable() ? shared_->values() : std::span<const float>();
  }

  std::span<float> writableView() const override {
    return shared_ && shared_->readable() ? shared_->writableValues() : std::span<float>();
  }

  uint64_t bytesPulled() const override { return bytesPulled_; }
  uint64_t bytesPushed() const override { return bytesPushed_; }

 private:
  friend class RpcPartialPush;

  /// Runs a call on the I/O thread and waits for its result.
  template <class T, class Work>
  Result<T> call(Work work) {
    try {
      return io_.runSync(work);
    } catch (const kj::Exception& exception) {
      // Channel types its own errors; what is left is a timeout.
      if (exception.getType() == kj::Exception::Type::OVERLOADED) {
        return Error{ErrorCode::deadlineExceeded, "no answer in time"};
      }
      return Error{ErrorCode::internal, exception.getDescription().cStr()};
    }
  }

  /// Starts a call on the I/O thread, after those started before. `whenDone` runs in the caller's wait().
  template <class T>
  Pending<T> start(std::function<kj::Promise<Result<T>>()> work, std::function<void(const T&)> whenDone) {
    auto promise = std::make_shared<std::promise<Result<T>>>();
    auto future = promise->get_future();
    io_.post([this, promise, work = std::move(work)] {
      tasks_->add(
          work().then([promise](Result<T> result) { promise->set_value(std::move(result)); },
                      [promise](kj::Exception&& exception) {
                        promise->set_value(Error{ErrorCode::internal, exception.getDescription().cStr()});
                      }));
    });
    return Pending<T>(std::make_unique<PendingFuture<T>>(std::move(future), std::move(whenDone)));
  }

  template <class T>
  static Pending<T> failed(Error error) {
    std::promise<Result<T>> promise;
    promise.set_value(std::move(error));
    return Pending<T>(std::make_unique<PendingFuture<T>>(promise.get_future(), nullptr));
  }

  Status checkSize(const char* what, size_t elements) const {
    if (elements_ != 0 && elements == elements_) return {};
    return {ErrorCode::invalidArgument, std::string(what) + " has " + std::to_string(elements) +
                                            " elements; the model's layout has " + std::to_string(elements_)};
  }

  JoinInfo describe() {
    JoinInfo info;
    io_.runSync([&](kj::AsyncIoContext&) {
      info.policy = channel_->policy();
      info.device = channel_->device();
      info.shardCount = static_cast<uint32_t>(channel_->plan().shards.size());
      slices_ = channel_->slices();
      shared_ = channel_->sharedModel();
      info.pushTransport = channel_->hasRing() ? "shm" : "rpc";
      info.codec = channel_->codec();
      info.pullCodec = channel_->pullCodec();
    });
    info.serverVersion = serverVersion_;
    info.pullTransport = shared_ ? "shm" : "rpc";
    return info;
  }

  const ClientOptions options_;
  IoThread io_;
  NoFailures noFailures_;
  kj::Own<kj::TaskSet> tasks_;  // these two belong to the I/O thread
  kj::Own<Channel> channel_;
  std::string serverVersion_;
  uint64_t chunkBytes_ = 0;
  uint64_t elements_ = 0;
  std::vector<Slice> slices_;                  // the channel's
  std::shared_ptr<const SharedModel> shared_;  // the channel's; null where values travel in messages
  uint64_t bytesPulled_ = 0;
  uint64_t bytesPushed_ = 0;
};

/// Keeps account of what is final and hands complete slices to the channel.
class RpcPartialPush final : public PartialPush {
 public:
  RpcPartialPush(RpcClient& client, PushOrder order)
      : client_(client),
        step_(order.step),
        coverage_(client.slices_),
        answer_(client.start<PushInfo>(
            [&client, order] { return client.channel_->beginPush(order, client.options_.window); },
            [&client](const PushInfo& info) { client.bytesPushed_ += info.bytes; })) {}

  ~RpcPartialPush() override {
    if (!answer_) return;
    giveUp();
    (void)answer_->wait();  // the caller may free the gradient now
  }

  void ready(uint64_t begin, uint64_t count) override {
    std::vector<size_t> complete = coverage_.add(begin, count);
    if (complete.empty()) return;
    client_.io_.post([&channel = client_.channel_, step = step_, complete = std::move(complete)] {
      channel->pushReady(step, complete);
    });
  }

  Pending<PushInfo> finish() override {
    if (coverage_.missing() > 0) {
      giveUp();
      (void)answer_->wait();
      answer_.reset();
      return RpcClient::failed<PushInfo>(
          {ErrorCode::invalidArgument, std::to_string(coverage_.missing()) + " elements were not reported"});
    }
    Pending<PushInfo> answer = std::move(*answer_);
    answer_.reset();
    return answer;
  }

 private:
  void giveUp() {
    client_.io_.post([&channel = client_.channel_, step = step_] { channel->giveUpPush(step); });
  }

  RpcClient& client_;
  const Step step_;
  Coverage coverage_;
  std::optional<Pending<PushInfo>> answer_;  // until finish()
};

/// A push that was wrong from the start.
class FailedPush final : public PartialPush {
 public:
  explicit FailedPush(Pending<PushInfo> answer) : answer_(std::move(answer)) {}
  void ready(uint64_t, uint64_t) override {}
  Pending<PushInfo> finish() override { return std::move(answer_); }

 private:
  Pending<PushInfo> answer_;
};

std::unique_ptr<PartialPush> RpcClient::beginPush(Step step, std::span<const float> gradient,
                                                  uint32_t samples, const std::vector<Version>& basis) {
  if (Status size = checkSize("a gradient", gradient.size()); !size.ok()) {
    return std::make_unique<FailedPush>(failed<PushInfo>(size.error()));
  }
  return std::make_unique<RpcPartialPush>(*this, PushOrder{step, gradient, samples, basis});
}

bool worthRetrying(const Error& error) {
  return error.code == ErrorCode::unavailable || error.code == ErrorCode::deadlineExceeded ||
         error.code == ErrorCode::shuttingDown;
}

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  if (options.servers.empty()) return Error{ErrorCode::invalidArgument, "no server address is given"};
  for (const std::string& server : options.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  auto client = std::make_unique<RpcClient>(options);
  Clock::time_point deadline = Clock::now() + options.connectTimeout;
  for (milliseconds pause = kRetryFirst;; pause = std::min(pause * 2, kRetryMost)) {
    Error last;
    for (const std::string& server : options.servers) {
      Status status = client->connectOnce(server, std::max(leftUntil(deadline), milliseconds(1)));
      if (status.ok()) return std::unique_ptr<Client>(std::move(client));
      last = status.error();
      if (!worthRetrying(last)) return last;
    }
    if (leftUntil(deadline) == milliseconds(0)) {
      return Error{ErrorCode::unavailable, "no psd daemon answered within " +
                                               std::to_string(options.connectTimeout.count()) +
                                               " ms: " + last.message};
    }
    std::this_thread::sleep_for(std::min(pause, leftUntil(deadline)));
  }
}

}  // namespace psd
