#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/calls.h"
#include "trainer/client/client.h"
#include "trainer/client/link.h"

namespace psd {

/// The Client: a Link, and more of them where a trainer has several connections, which stand or fall
/// together. Owned by one thread.
class RpcClient final : public Client, private CallHost {
 public:
  RpcClient(const ClientOptions& options, std::unique_ptr<Link> first);
  ~RpcClient() noexcept override;

  /// Connects within `timeout`; retries while nobody answers.
  Status connect(std::chrono::milliseconds timeout);

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<std::span<const float>()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override;
  bool useDeviceMemory() override;
  Pending<PullInfo> pull(std::span<float> destination) override;
  Pending<PushInfo> push(Step step, std::span<const float> gradient, uint32_t samples,
                         const std::vector<Version>& basis) override;
  std::unique_ptr<PartialPush> beginPush(Step step, std::span<const float> gradient, uint32_t samples,
                                         const std::vector<Version>& basis) override;
  Result<DealtSamples> takeSamples(const SamplesWish& wish) override;
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override;
  Status leave() override;
  void interrupt() override;
  std::span<const float> view() const override {
    return shared_ && shared_->readable() ? shared_->values() : std::span<const float>();
  }
  std::span<float> writableView() const override {
    return shared_ && shared_->readable() ? shared_->writableValues() : std::span<float>();
  }
  uint64_t bytesPulled() const override { return bytesPulled_; }
  uint64_t bytesPushed() const override { return bytesPushed_; }

 private:
  /// Who this trainer is, from the first join() on.
  struct Trainer {
    Membership membership;
    ModelSpec model;
    std::function<std::span<const float>()> initialValues;
  };

  /// The connection that joins, and makes all calls of which there are no shares.
  Link& first() { return *links_.front(); }

  CallHost& host() { return *this; }
  uint64_t connection() const override { return connection_; }
  Link& link(uint32_t index) const override { return *links_[index]; }
  const std::shared_ptr<const DividedSlices>& slices() const override { return slices_; }
  const std::shared_ptr<const SharedModel>& sharedModel() const override { return shared_; }
  uint32_t window() const override { return options_.window; }
  bool valuesOnDevice() const override { return onDevice_; }
  void outlastOldest() override;
  bool ended() const override { return gaveUp_ || interrupted_; }
  void count(const PullInfo& info) override { bytesPulled_ += info.bytes; }
  void count(const PushInfo& info) override { bytesPushed_ += info.bytes; }
  bool mayRecover(const Error& error) const override;
  Status recover(uint64_t broken, const Error& cause) override;
  /// Forgets settled pushes and sends those that may go now. Over one connection all may go. Over
  /// several, one at a time: a later step gives up what is unfinished of the one before, and connections do
  /// not keep step.
  void sendDue() override;
  void tellWait(const std::string& what) override;

  /// One attempt at one server; the first link's channel is replaced when it succeeds.
  Status connectOnce(const std::string& server, std::chrono::milliseconds timeout);
  /// One attempt at each server, all within `timeout`.
  Status connectToAny(std::chrono::milliseconds timeout);
  Result<JoinAnswer> askToJoin(const JoinOrder& order, std::chrono::milliseconds timeout);
  /// Joins over the channel as it is, and brings values if asked to. The daemon answers the join within
  /// `timeout`, or it fails; 0: however long it takes.
  Status joinOnce(std::chrono::milliseconds timeout);
  /// Further connections, each to be there within `timeout`, or where that is 0 within that of connecting.
  Status attachOthers(std::chrono::milliseconds timeout);
  Status attach(Link& link, const SessionTerms& terms, std::chrono::milliseconds timeout);
  /// Has all of the first `links` connections fail when one of them does.
  void failTogether(uint32_t links);
  /// Undoes failTogether(): a connection that fails leaves the others alone.
  void standAlone();
  JoinInfo describe();

  Status comeBack(const Error& cause);
  void endChannels(const Error& why);
  /// Sends again the pushes that are not answered. Gives how many.
  size_t resendPushes();
  void forgetSettledPushes();
  void tell(ClientEvent::What what, std::string line) const;
  /// Waits for the answer to a call of the first connection that others may hold up.
  template <class T>
  Result<T> outwait(const Link::Future<T>& answer, const std::string& what);

  Status checkSize(const char* what, size_t elements) const;

  const ClientOptions options_;
  const uint64_t incarnation_;
  std::optional<Trainer> trainer_;
  std::vector<std::unique_ptr<Link>> links_;  // as many as were ever needed; slices_->links are in use
  uint64_t connection_ = 0;                   // counts the channels of the first
  std::string server_, serverVersion_;
  JoinAnswer joined_;
  JoinInfo info_;
  bool gaveUp_ = false;    // recover() failed
  bool onDevice_ = false;  // see useDeviceMemory()
  Link& interruptible_;    // the first, for interrupt()
  std::atomic<bool> interrupted_ = false;
  std::chrono::steady_clock::time_point nextTellWait_{};
  uint64_t elements_ = 0;
  std::shared_ptr<const DividedSlices> slices_ = std::make_shared<DividedSlices>();
  std::shared_ptr<const SharedModel> shared_;    // the channel's; null where values travel in messages
  std::list<std::shared_ptr<PushCall>> pushes_;  // pushes that may not be answered yet, oldest first
  std::map<Step, HeldSamples> held_;             // dealt for pushes that are not answered, or yet to come
  uint64_t bytesPulled_ = 0;
  uint64_t bytesPushed_ = 0;
};

template <class T>
Result<T> RpcClient::outwait(const Link::Future<T>& answer, const std::string& what) {
  if (answer.wait_for(kLongWait) != std::future_status::ready) tellWait(what);
  return answer.get();
}

}  // namespace psd
