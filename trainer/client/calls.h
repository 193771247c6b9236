#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/client/client_lock.h"
#include "trainer/client/coverage.h"
#include "trainer/client/links.h"
#include "trainer/client/reported_ranges.h"
#include "trainer/client/transport/shared_copy.h"

namespace psd {

/// Error of all calls after Client::interrupt().
inline Error interruptedError() { return {ErrorCode::interrupted, "this trainer was interrupted"}; }

/// Services that calls use of their client. Used with the client's lock held, except reportWait().
class CallHost {
 public:
  virtual ~CallHost() = default;

  virtual ClientLock& lock() = 0;
  /// Sends the pushes that may be sent now.
  virtual void sendDue() = 0;
  /// Waits for the answer to the oldest push that was sent; an Error if the wait is ended.
  virtual Status awaitOldest() = 0;
  /// Reports, at intervals, that the client waits long for `what`. Called without the lock.
  virtual void reportWait(const std::string& what) = 0;
  /// Whether the client has ended: it was interrupted, or could not reconnect.
  virtual bool ended() const = 0;
  /// Whether recover() may help.
  virtual bool mayRecover(const Error& error) const = 0;
  /// After a call on channel number `broken` failed with `cause`: reconnects, joins again and resends what
  /// was not answered; does nothing if that has happened since. Returns the error for the caller.
  virtual Status recover(uint64_t broken, const Error& cause) = 0;
  /// Counts the bytes of an answered call. `rows`: it included rows.
  virtual void count(const PullInfo& info) = 0;
  virtual void count(const PushInfo& info, bool rows) = 0;
};

/// A pull, from start to result, across reconnects. Used with the client's lock held, which wait() leaves
/// while it waits.
class PullCall final : public Pending<PullInfo>::Impl {
 public:
  /// `onDevice`: whether the destination is in device memory, as in PushRequest::onDevice. `rows`: to be
  /// filled in too; null: none. `fragment`: the only one to pull, of a model without rows; empty: all.
  PullCall(CallHost& client, const Links& links, ArenaValues destination, bool onDevice,
           std::shared_ptr<RowBatch> rows, std::optional<uint32_t> fragment = {});
  bool done() const override { return values_.ready() && rowValues_.ready(); }
  Result<PullInfo> wait() override;

 private:
  void send();
  Result<PullInfo> answers();

  CallHost& client_;
  const Links& links_;
  const ArenaValues destination_;
  const bool onDevice_;
  const std::shared_ptr<RowBatch> rows_;
  const std::optional<uint32_t> fragment_;
  uint64_t connection_ = 0;           // connection that the call was sent on
  std::shared_ptr<SharedCopy> copy_;  // null: values are pulled slice by slice
  Answers<PullInfo> values_;          // of a pull of rows only, those of the rows
  Answers<PullInfo> rowValues_;       // of rows pulled together with values
};

/// A push, from start to answer, across reconnects: tracks which elements of its gradient are final, and
/// passes complete slices to the channels. The client decides when it may be sent. Used with the client's
/// lock held, which is left while a call waits.
class PushCall {
 public:
  PushCall(CallHost& client, const Links& links, PushRequest request);

  /// See PartialPush::ready().
  void ready(uint64_t begin, uint64_t count);
  uint64_t missing() const { return request_.gradient.empty() ? 0 : coverage_.missing(); }
  /// Whether elements were reported more than once; repetitions were ignored.
  bool repeated() const { return repeated_; }
  /// The gradients of the rows are final.
  void rowsReady();
  /// Sends nothing more, and waits for outstanding answers.
  void giveUp();

  /// Starts the push, or restarts it on another connection.
  void send();
  Step step() const { return request_.step; }
  /// Whether the pushes have shards in common, so that the later one drops what is unfinished of the other.
  bool overlaps(const PushCall& other) const {
    return !request_.fragment || !other.request_.fragment || request_.fragment == other.request_.fragment;
  }
  bool sent() const { return answer_.started(); }
  bool done() const;
  /// Whether nothing remains to be sent: it was answered, or failed for good.
  bool settled() const;
  /// Notifies all connections which shards dropped the push, once it is settled.
  void conclude() const;
  Result<PushInfo> wait();
  /// Waits for this push's answer on behalf of another push, and recovers if the answer is lost. An Error if
  /// the wait is ended.
  Status awaitAndRecover();
  /// Discards the push's answer, which is lost: the push must be resent.
  void forgetAnswer() { answer_ = {}; }

 private:
  void sendReady(const std::vector<size_t>& slices) const;
  void sendRows() const;
  bool await(const Answers<PushInfo>& answer);

  CallHost& client_;
  const Links& links_;
  PushRequest request_;  // `dropped` belongs to the newest transmission
  ReportedRanges reported_;
  bool repeated_ = false;
  std::shared_ptr<const DividedSlices> slices_;  // of the connection
  Coverage coverage_;                            // of slices_
  uint64_t connection_ = 0;                      // connection that the call was sent on
  bool givenUp_ = false;
  bool rowsReady_ = false;
  Answers<PushInfo> answer_;
};

}  // namespace psd
