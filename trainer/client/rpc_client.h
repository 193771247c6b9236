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
#include "trainer/client/links.h"

namespace psd {

/// The Client. Owned by one thread.
class RpcClient final : public Client, private CallHost {
 public:
  RpcClient(const ClientOptions& options, std::unique_ptr<Link> first);

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
  Result<DealtSamples> takeSamples(const SamplesRequest& request) override;
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override;
  Status leave() override;
  void interrupt() override;
  std::span<const float> view() const override {
    return readable() ? readable()->values() : std::span<const float>();
  }
  std::span<float> writableView() const override {
    return readable() ? readable()->writableValues() : std::span<float>();
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

  Link& first() const { return links_.first(); }
  const SharedModel* readable() const {
    const SharedModel* const shared = links_.sharedModel().get();
    return shared && shared->readable() ? shared : nullptr;
  }

  CallHost& host() { return *this; }
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
  Result<JoinAnswer> askToJoin(const JoinRequest& request, std::chrono::milliseconds timeout);
  /// Joins over the channel as it is, and brings values if asked to. The daemon answers the join within
  /// `timeout`, or it fails; 0: however long it takes.
  Status joinOnce(std::chrono::milliseconds timeout);
  /// Further connections, each to be there within `timeout`, or where that is 0 within that of connecting.
  Status attachOthers(std::chrono::milliseconds timeout);
  Status attach(Link& link, const SessionTerms& terms, std::chrono::milliseconds timeout);
  JoinInfo describe();

  Status comeBack(const Error& cause);
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
  Links links_;
  std::string server_, serverVersion_;
  JoinAnswer joined_;
  JoinInfo info_;
  bool gaveUp_ = false;    // recover() failed
  bool onDevice_ = false;  // see useDeviceMemory()
  Link& interruptible_;    // the first, for interrupt()
  std::atomic<bool> interrupted_ = false;
  std::chrono::steady_clock::time_point nextTellWait_{};
  uint64_t elements_ = 0;
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
