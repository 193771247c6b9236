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

/// The place of a connection in a client: one Channel after another, on an I/O thread of its own. Owned by
/// the client's thread, which makes all calls where nothing else is said.
class Link {
 public:
  template <class T>
  using Future = std::shared_future<Result<T>>;

  /// ErrorCode::overloaded where the system has no thread or descriptors left.
  static Result<std::unique_ptr<Link>> make();
  ~Link() { close(); }

  /// A new Channel over a socket that is connected to the address, which has agreed on the protocol within
  /// `timeout`, in place of the one before. Gives what the daemon says of itself.
  Result<DaemonIdentity> open(OwnFd fd, const Address& address, const ClientOptions& options,
                              std::chrono::milliseconds timeout);
  /// Runs `work(channel, timer)` on the I/O thread and waits for what it promises, an `Answer`: a Result or a
  /// Status.
  template <class Answer, class Work>
  Answer call(Work work);
  /// Starts a call on the I/O thread, after those started before.
  template <class T>
  Future<T> start(std::function<kj::Promise<Result<T>>(Channel&)> work);
  /// Runs `work(channel)` on the I/O thread and gives what it returns.
  template <class Work>
  auto look(Work work) {
    return io_.runSync([&](kj::AsyncIoContext&) { return work(*channel_); });
  }
  /// Runs `work` on the I/O thread, if there is a channel then, and does not wait for it. From any thread.
  void post(std::function<void(Channel&)> work);

  /// See Channel::carry(); the encoder is the last channel's.
  void carry(uint32_t number, uint32_t links);
  /// See Channel::fail(); nothing where there is no channel.
  void fail(const Error& why);
  /// fail() without waiting for it. From any thread.
  void failSoon(const Error& why);
  /// Says goodbye, and fails what is under way with `why` once that is answered, or in two seconds. Does not
  /// wait for it. From any thread.
  void leaveSoon(const Error& why);
  /// Drops channel and calls; those that use memory of the caller have ended by then.
  void close();

 private:
  Link();

  IoThread io_;
  std::string server_;  // of the channel
  // What follows belongs to the I/O thread.
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<Channel> channel_;
  kj::Own<Channel> retired_;                // the channel before, until what was under way on it has failed
  std::shared_ptr<EncodedPushes> encoder_;  // of pushes, from one channel to the next; null: they need none
};

/// The answers of all connections to a call of which each has a share. Used by the client's thread.
template <class T>
class Answers {
 public:
  /// Nothing was asked yet.
  Answers() = default;
  explicit Answers(std::vector<Link::Future<T>> parts) : parts_(std::move(parts)) {}

  bool asked() const { return !parts_.empty(); }
  bool ready() const { return readyWithin(std::chrono::seconds(0)); }
  /// Whether all answers are there; waits for that of each connection no longer than `time`.
  bool readyWithin(std::chrono::milliseconds time) const;
  /// Waits for all. Of several errors the first, but rather one that says more than that a connection is
  /// lost.
  Result<T> get() const;

 private:
  std::vector<Link::Future<T>> parts_;
};

template <class Answer, class Work>
Answer Link::call(Work work) {
  try {
    return io_.runSync([&](kj::AsyncIoContext& io) { return work(*channel_, io.provider->getTimer()); });
  } catch (const kj::Exception& exception) {
    // Channel types its own errors; what is left is a timeout.
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
