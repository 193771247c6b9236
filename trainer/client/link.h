#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/channel.h"
#include "trainer/client/io_thread.h"

namespace psd {

/// One connection slot of a client: a succession of Channels, on its own I/O thread. Owned by the client's
/// thread, which makes all calls unless noted otherwise.
class Link {
 public:
  template <class T>
  using Future = std::shared_future<Result<T>>;

  /// ErrorCode::overloaded if the system is out of threads or descriptors.
  static Result<std::unique_ptr<Link>> make();
  ~Link() { close(); }

  /// Replaces the channel by a new one over a socket connected to `address`, logged in within `timeout`.
  /// Returns what the daemon says of itself.
  Result<DaemonIdentity> open(OwnFd fd, const Address& address, const ClientOptions& options,
                              std::chrono::milliseconds timeout);
  /// Runs `work(channel, timer)` on the I/O thread and waits for its promise of an `Answer`: a Result or a
  /// Status.
  template <class Answer, class Work>
  Answer call(Work work);
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
  /// Destroys the channel and its calls; those that use memory of the caller have ended on return.
  void close();

 private:
  Link();

  IoThread io_;
  std::string server_;  // of the channel
  // The rest belongs to the I/O thread.
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<Channel> channel_;
  kj::Own<Channel> retired_;                // the previous channel, until its calls have failed
  std::shared_ptr<EncodedPushes> encoder_;  // of pushes, kept from one channel to the next; null: no codec
};

/// The answers of all connections to a call in which each has a share. Used on the client's thread.
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
Answer Link::call(Work work) {
  try {
    return io_.runSync([&](kj::AsyncIoContext& io) { return work(*channel_, io.provider->getTimer()); });
  } catch (const kj::Exception& exception) {
    // Channel turns its own failures into errors; only a timeout is left.
    if (exception.getType() == kj::Exception::Type::OVERLOADED) {
      return Error{ErrorCode::unavailable, server_ + ": no answer in time"};
    }
    return Error{ErrorCode::internal, exception.getDescription().cStr()};
  }
}

template <class T>
Link::Future<T> Link::start(std::function<kj::Promise<Result<T>>(Channel&)> work) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  Future<T> future = promise->get_future().share();
  io_.post([this, promise, work = std::move(work)] {
    tasks_->add(work(*channel_).then(
        [promise](Result<T> result) { promise->set_value(std::move(result)); },
        [promise](kj::Exception&& exception) {
          promise->set_value(Error{ErrorCode::internal, exception.getDescription().cStr()});
        }));
  });
  return future;
}

}  // namespace psd
