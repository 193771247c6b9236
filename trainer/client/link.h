#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/channel.h"
#include "trainer/client/client_lock.h"
#include "trainer/client/io_thread.h"

namespace psd {

/// One connection slot of a client: a succession of Channels, on its own I/O thread. Used with the client's
/// lock held, unless noted otherwise.
class Link {
 public:
  template <class T>
  using Future = std::shared_future<Result<T>>;

  /// ErrorCode::overloaded if the system is out of threads or descriptors.
  static Result<std::unique_ptr<Link>> make();
  ~Link() { close(); }

  /// Replaces the channel by a new one over a socket connected to `address`, logged in within `timeout`.
  /// Returns what the daemon says of itself.
  Result<DaemonIdentity> open(ClientLock& lock, OwnFd fd, const Address& address,
                              const ClientOptions& options, std::chrono::milliseconds timeout);
  /// Runs `work(channel, timer)` on the I/O thread and waits, outside the lock, for its promise of an
  /// `Answer`: a Result or a Status. The promise is cancelled if the wait is ended.
  template <class Answer, class Work>
  Answer call(ClientLock& lock, Work work) {
    return await<Answer>(lock, server_, [this, &work](kj::AsyncIoContext& io) {
      return work(*channel_, io.provider->getTimer());
    });
  }
  /// Starts a call on the I/O thread, after those started before.
  template <class T>
  Future<T> start(std::function<kj::Promise<Result<T>>(Channel&)> work);
  /// Runs `work(channel)` on the I/O thread and returns its result.
  template <class Work>
  auto look(Work work) {
    return io_.runSync([&](kj::AsyncIoContext&) { return work(*channel_); });
  }
  /// Runs `work` on the I/O thread, if there is a channel then, without waiting for it. Callable from any
  /// thread.
  void post(std::function<void(Channel&)> work);

  /// See Channel::carry(); passes the last channel's encoder on.
  void carry(uint32_t number, uint32_t links);
  /// See Channel::fail(); does nothing without a channel.
  void fail(const Error& why);
  /// fail() without waiting for it. Callable from any thread.
  void failAsync(const Error& why);
  /// Says goodbye, and fails all calls in progress with `why` once that is answered, or after two seconds.
  /// Does not wait. Callable from any thread.
  void leaveAsync(const Error& why);
  /// Destroys the channel and its calls; those that use memory of the caller have ended on return. First
  /// waits for the goodbye of leaveAsync(), at most a second.
  void close();

 private:
  Link();

  /// call() for `work(io)`; `server` is named in the error of a timeout.
  template <class Answer, class Work>
  Answer await(ClientLock& lock, const std::string& server, Work work);

  IoThread io_;
  std::string server_;  // of the channel
  // The rest belongs to the I/O thread.
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<kj::TaskSet> goodbyes_;  // of leaveAsync()
  kj::Own<Channel> channel_;
  kj::Own<Channel> retired_;                // the previous channel, until its calls have failed
  std::shared_ptr<EncodedPushes> encoder_;  // of pushes, kept from one channel to the next; null: no codec
};

/// The answers of all connections to a call in which each has a share. A value type.
template <class T>
class Answers {
 public:
  /// No call was started.
  Answers() = default;
  explicit Answers(std::vector<Link::Future<T>> parts) : parts_(std::move(parts)) {}

  bool started() const { return !parts_.empty(); }
  bool ready() const { return readyWithin(std::chrono::seconds(0)); }
  /// Whether all answers have arrived; waits at most `time` for that of each connection.
  bool readyWithin(std::chrono::milliseconds time) const;
  /// Waits for all. Of several errors returns the first, preferring one that says more than that a connection
  /// was lost.
  Result<T> get() const;

 private:
  std::vector<Link::Future<T>> parts_;
};

template <class Answer, class Work>
Answer Link::await(ClientLock& lock, const std::string& server, Work work) {
  struct Running {
    std::promise<Answer> answer;
    kj::Canceler canceler;  // used on the I/O thread
  };
  const auto running = std::make_shared<Running>();
  std::future<Answer> answered = running->answer.get_future();
  io_.post([this, running, &work, server] {
    tasks_->add(running->canceler.wrap(kj::evalNow([&] { return work(io_.context()); }))
                    .then([running](Answer answer) { running->answer.set_value(std::move(answer)); },
                          [running, server](kj::Exception&& exception) {
                            // Channel turns its own failures into errors; only a timeout is left.
                            const bool timeout = exception.getType() == kj::Exception::Type::OVERLOADED;
                            running->answer.set_value(
                                timeout ? Error{ErrorCode::unavailable, server + ": no answer in time"}
                                        : Error{ErrorCode::internal, exception.getDescription().cStr()});
                          }));
  });
  if (lock.awaitFuture(answered)) return answered.get();
  io_.runSync([&](kj::AsyncIoContext&) { running->canceler.cancel("the wait was ended"); });
  return waitEndedError();
}

template <class T>
Link::Future<T> Link::start(std::function<kj::Promise<Result<T>>(Channel&)> work) {
  /// The answer of a call that is abandoned when the link closes is an error.
  struct Answer {
    ~Answer() {
      if (!given) promise.set_value(Error{ErrorCode::interrupted, "the client was destroyed"});
    }
    void give(Result<T> result) {
      given = true;
      promise.set_value(std::move(result));
    }
    std::promise<Result<T>> promise;
    bool given = false;
  };
  auto answer = std::make_shared<Answer>();
  Future<T> future = answer->promise.get_future().share();
  io_.post([this, answer = std::move(answer), work = std::move(work)] {
    tasks_->add(
        work(*channel_).then([answer](Result<T> result) { answer->give(std::move(result)); },
                             [answer](kj::Exception&& exception) {
                               answer->give(Error{ErrorCode::internal, exception.getDescription().cStr()});
                             }));
  });
  return future;
}

}  // namespace psd
