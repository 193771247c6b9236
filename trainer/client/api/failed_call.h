#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "trainer/client/api/client.h"

namespace psd {

/// A call that failed before it was sent: its answer is available immediately.
template <class T>
Pending<T> failedCall(Error error) {
  class Failed final : public Pending<T>::Impl {
   public:
    explicit Failed(Error error) : error_(std::move(error)) {}
    bool done() const override { return true; }
    Result<T> wait() override { return error_; }

   private:
    const Error error_;
  };
  return Pending<T>(std::make_unique<Failed>(std::move(error)));
}

/// A push that failed before it was sent. Used by one thread at a time.
class FailedPush final : public PartialPush {
 public:
  explicit FailedPush(Error error) : error_(std::move(error)) {}
  void ready(uint64_t, uint64_t) override {}
  Pending<PushInfo> finish() override { return failedCall<PushInfo>(error_); }

 private:
  const Error error_;
};

}  // namespace psd
