#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "trainer/client/client.h"

namespace psd {

/// A call in progress, independent of who waits for it. Used on the client's thread.
class TrackedCall {
 public:
  virtual ~TrackedCall() = default;
  virtual bool finished() const = 0;
  /// Waits for the answer, and stores it.
  virtual void settle() = 0;
};

/// A call whose answer is stored until it is retrieved, once. Used on the client's thread.
template <class Info>
class Tracked final : public TrackedCall {
 public:
  /// `after`: called with the answer before it is returned, on the client's thread.
  Tracked(Pending<Info> call, std::function<void(const Result<Info>&)> after)
      : after_(std::move(after)), call_(std::move(call)) {}

  bool done() const { return answer_ || !call_ || call_->done(); }
  bool finished() const override { return answer_ || !call_ || call_->finished(); }
  void settle() override {
    if (answer_ || !call_) return;
    answer_ = call_->wait();
    call_.reset();
    if (after_) after_(*answer_);
  }
  Result<Info> wait() {
    settle();
    return *std::exchange(answer_, std::nullopt);
  }

 private:
  const std::function<void(const Result<Info>&)> after_;  // may own what the call uses
  std::optional<Pending<Info>> call_;
  std::optional<Result<Info>> answer_;
};

/// The caller's handle of a tracked call. Used on the client's thread.
template <class Info>
class TrackedPending final : public Pending<Info>::Impl {
 public:
  explicit TrackedPending(std::shared_ptr<Tracked<Info>> call) : call_(std::move(call)) {}
  bool done() const override { return call_->done(); }
  bool finished() const override { return call_->finished(); }
  Result<Info> wait() override { return call_->wait(); }

 private:
  const std::shared_ptr<Tracked<Info>> call_;
};

}  // namespace psd
