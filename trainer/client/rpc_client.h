#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/client.h"
#include "trainer/client/link.h"

namespace psd {

class PushCall;

/// The Client: a Link, and more of them where a trainer has several connections, which stand or fall
/// together. Owned by one thread.
class RpcClient final : public Client {
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
  static constexpr std::chrono::milliseconds kLongWait{3'000};

  friend class PullCall;
  friend class PushCall;

  /// Who this trainer is, from the first join() on.
  struct Trainer {
    Membership membership;
    ModelSpec model;
    std::function<std::span<const float>()> initialValues;
  };

  /// The connection that joins, and makes all calls of which there are no shares.
  Link& first() { return *links_.front(); }
  /// Starts a call of which each connection has its share.
  template <class T>
  Answers<T> startOnAll(const std::function<kj::Promise<Result<T>>(Channel&)>& work);

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
  /// When one of so many fails, all do.
  void failTogether(uint32_t links);
  /// Undoes that.
  void standAlone();
  JoinInfo describe();

  /// Whether recover() may help.
  bool mayRecover(const Error& error) const;
  /// After a call of connection `broken` failed with `cause`: connects and joins again, and sends what was
  /// not answered; nothing where that has been done since. The error is what to tell the caller.
  Status recover(uint64_t broken, const Error& cause);
  Status comeBack(const Error& cause);
  void endChannels(const Error& why);
  /// Gives how many.
  size_t resendPushes();
  void forgetSettledPushes();
  /// Forgets settled pushes and sends those that may go now. Over one connection all may go. Over
  /// several, one at a time: a later step gives up what is unfinished of the one before, and connections do
  /// not keep step.
  void sendDue();
  void tell(ClientEvent::What what, std::string line) const;
  /// Tells, now and then, that it takes long.
  void tellWait(const std::string& what);
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
  std::list<std::shared_ptr<PushCall>> pushes_;  // that may not be answered yet, oldest first
  std::map<Step, HeldSamples> held_;             // dealt for pushes that are not answered, or yet to come
  uint64_t bytesPulled_ = 0;
  uint64_t bytesPushed_ = 0;
};

template <class T>
Result<T> RpcClient::outwait(const Link::Future<T>& answer, const std::string& what) {
  if (answer.wait_for(kLongWait) != std::future_status::ready) tellWait(what);
  return answer.get();
}

template <class T>
Answers<T> RpcClient::startOnAll(const std::function<kj::Promise<Result<T>>(Channel&)>& work) {
  std::vector<Link::Future<T>> parts;
  for (uint32_t i = 0; i < slices_->links; i++) parts.push_back(links_[i]->start<T>(work));
  return Answers<T>(std::move(parts));
}

}  // namespace psd
