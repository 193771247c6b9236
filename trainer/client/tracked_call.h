#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "trainer/client/api/client.h"
#include "trainer/client/client_lock.h"

namespace psd {

/// A call in progress, independent of who waits for it. Used with the client's lock held.
class TrackedCall {
 public:
  virtual ~TrackedCall() = default;
  virtual bool finished() const = 0;
  /// Waits for the answer, and stores it. An Error if the wait is ended.
  virtual Status settle() = 0;
  /// Answers the call with `why`, unless it has an answer: the client that makes it is about to be destroyed.
  virtual void drop(const Error& why) = 0;
};

/// A call whose answer is stored until it is retrieved, once. Several threads may wait for it. Used with the
/// client's lock held, which settle() leaves while it waits.
template <class Info>
class Tracked final : public TrackedCall {
 public:
  /// `maker`: what makes the call, kept until its answer. `after`, which may be null: called with the answer
  /// before it is returned; may own what the call uses.
  Tracked(ClientLock& lock, Pending<Info> call, std::shared_ptr<void> maker,
          std::function<void(const Result<Info>&)> after)
      : lock_(lock), after_(std::move(after)), maker_(std::move(maker)), call_(std::move(call)) {}

  bool done() const { return answer_ || !call_ || dropped_ || call_->done(); }
  bool finished() const override { return answer_ || !call_ || call_->finished(); }
  Status settle() override {
    if (!lock_.awaitChange([this] { return !isWaitedFor_; })) return waitEndedError();
    if (answer_ || !call_) return {};
    isWaitedFor_ = true;
    Result<Info> answer = call_->wait();
    isWaitedFor_ = false;
    lock_.changed();
    if (dropped_) answer = *dropped_;
    // The call may continue, with its arrays.
    if (!dropped_ && !answer.ok() && answer.error().code == ErrorCode::interrupted) return answer.error();
    if (after_) after_(answer);
    answer_ = std::move(answer);
    end();
    return {};
  }
  void drop(const Error& why) override {
    if (answer_ || !call_) return;
    dropped_ = why;
    if (isWaitedFor_) return;  // that thread ends the call
    answer_ = *dropped_;
    end();
  }
  Result<Info> wait() {
    PSD_RETURN_IF_ERROR(settle());
    if (!answer_) return Error{ErrorCode::invalidArgument, "a call has one answer, which was taken already"};
    return *std::exchange(answer_, std::nullopt);
  }

 private:
  void end() {
    call_.reset();
    maker_.reset();
  }

  ClientLock& lock_;
  const std::function<void(const Result<Info>&)> after_;
  std::shared_ptr<void> maker_;
  std::optional<Pending<Info>> call_;
  std::optional<Result<Info>> answer_;
  std::optional<Error> dropped_;
  bool isWaitedFor_ = false;
};

/// The caller's handle of a tracked call. Used by one thread at a time; may outlive the client.
template <class Info>
class TrackedPending final : public Pending<Info>::Impl {
 public:
  TrackedPending(std::shared_ptr<ClientLock> lock, std::shared_ptr<Tracked<Info>> call)
      : lock_(std::move(lock)), call_(std::move(call)) {}
  bool done() const override {
    const ClientLock::Hold hold(*lock_, ClientLock::Turn::any);
    return call_->done();
  }
  bool finished() const override {
    const ClientLock::Hold hold(*lock_, ClientLock::Turn::any);
    return call_->finished();
  }
  Result<Info> wait() override {
    const ClientLock::Hold hold(*lock_);
    PSD_RETURN_IF_ERROR(hold.status());
    return call_->wait();
  }

 private:
  const std::shared_ptr<ClientLock> lock_;
  const std::shared_ptr<Tracked<Info>> call_;
};

}  // namespace psd
