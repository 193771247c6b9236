#pragma once

#include <utility>
#include <vector>

#include "trainer/client/coverage.h"
#include "trainer/client/rpc_client.h"
#include "trainer/client/shared_copy.h"

namespace psd {

/// What calls end with after Client::interrupt().
inline Error interruptedError() { return {ErrorCode::interrupted, "this trainer was told to stop"}; }

/// A pull, from its beginning to its values, whatever becomes of connections meanwhile. Used by the client's
/// thread.
class PullCall final : public Pending<PullInfo>::Impl {
 public:
  PullCall(RpcClient& client, std::span<float> destination);
  bool done() const override { return values_.ready(); }
  Result<PullInfo> wait() override;

 private:
  void send();

  RpcClient& client_;
  const std::span<float> destination_;
  const bool onDevice_;
  uint64_t connection_ = 0;           // that it was sent on
  std::shared_ptr<SharedCopy> copy_;  // null: the values come in messages
  Answers<PullInfo> values_;
};

/// A push, from its beginning to its answer, likewise. Keeps account of what is final of its gradient, and
/// hands complete slices to the channels. The client says when it may be sent.
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
  Step step() const { return order_.step; }
  bool sent() const { return answer_.asked(); }
  bool done() const;
  /// Whether nothing is to be sent any more: it was answered, or refused for good.
  bool settled() const;
  /// It is settled: tells all connections which shards dropped it.
  void conclude() const;
  Result<PushInfo> wait();
  /// Waits for its answer on behalf of another push, and recovers if that is lost.
  void outlast();
  /// Its answer is lost: it is to be sent again.
  void forgetAnswer() { answer_ = {}; }

 private:
  void sendReady(const std::vector<size_t>& slices) const;

  RpcClient& client_;
  PushOrder order_;                                      // `dropped` is of the newest sending
  std::vector<std::pair<uint64_t, uint64_t>> reported_;  // begin and count
  std::shared_ptr<const DividedSlices> slices_;          // of the connection
  Coverage coverage_;                                    // of these
  uint64_t connection_ = 0;                              // that it was sent on
  bool givenUp_ = false;
  Answers<PushInfo> answer_;
};

}  // namespace psd
