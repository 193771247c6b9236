#pragma once

#include <utility>
#include <vector>

#include "trainer/client/rpc_client.h"

namespace psd {

template <class T>
bool isReady(const std::shared_future<Result<T>>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// A pull, from its beginning to its values, over as many connections as it takes. Used by the client's
/// thread.
class PullCall final : public Pending<PullInfo>::Impl {
 public:
  PullCall(RpcClient& client, std::span<float> destination);
  bool done() const override { return isReady(values_); }
  Result<PullInfo> wait() override;

 private:
  void send();

  RpcClient& client_;
  const std::span<float> destination_;
  uint64_t connection_ = 0;  // that it was sent on
  std::shared_future<Result<PullInfo>> values_;
};

/// A push, from its beginning to its answer, likewise. Keeps account of what is final of its gradient, and
/// hands complete slices to the channel.
class PushCall {
 public:
  PushCall(RpcClient& client, PushOrder order);

  /// See PartialPush::ready().
  void ready(uint64_t begin, uint64_t count);
  uint64_t missing() const { return coverage_.missing(); }
  /// Sends nothing more, and waits for the answers to what was sent.
  void giveUp();

  /// Begins it, or begins it anew on another connection.
  void send();
  bool done() const { return isReady(answer_); }
  /// Whether nothing is to be sent any more: it was answered, or refused for good.
  bool settled() const;
  Result<PushInfo> wait();

 private:
  void sendReady(std::vector<size_t> slices);

  RpcClient& client_;
  const PushOrder order_;
  std::vector<std::pair<uint64_t, uint64_t>> reported_;  // begin and count
  Coverage coverage_;                                    // of the connection's slices
  uint64_t connection_ = 0;                              // that it was sent on
  bool givenUp_ = false;
  std::shared_future<Result<PushInfo>> answer_;
};

}  // namespace psd
