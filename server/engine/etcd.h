#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <kj/async-io.h>
#include <kj/timer.h>

#include "server/engine/engine.h"
#include "server/engine/etcd_endpoint.h"
#include "server/engine/etcd_options.h"

namespace psd {

/// Client of etcd 3.4 or later, over its JSON gateway. Sends reads and swaps to all members concurrently and
/// takes the first answer, so it need not know the leader or which members are down. Owned by one event loop.
class Etcd final : public Engine, private kj::TaskSet::ErrorHandler {
 public:
  /// Reads the password file, and validates the TLS files; does not connect. Network and timer outlive it.
  static Result<std::unique_ptr<Etcd>> open(kj::Network& network, kj::Timer& timer,
                                            const EtcdOptions& options);

  Etcd(kj::Network& network, kj::Timer& timer, EtcdOptions options, const std::string& password);

  kj::Promise<Result<Stored>> read(std::string key) override;
  kj::Promise<Result<Swapped>> swap(std::string key, uint64_t expectedRevision, std::string text) override;
  kj::Promise<Result<Stored>> changed(std::string key, uint64_t knownRevision) override;
  std::string trouble() const override { return trouble_; }

 private:
  template <class T>
  struct Race;
  template <class T>
  using Ask = std::function<kj::Promise<Result<T>>(EtcdEndpoint&)>;

  /// The first answer of any member; if all fail, an Error that combines theirs.
  template <class T>
  kj::Promise<Result<T>> firstOf(const Ask<T>& ask);
  kj::Promise<Result<etcd::Range>> range(std::string key);
  kj::Promise<Result<Stored>> poll(std::string key, uint64_t knownRevision);
  /// Resolves once a member reports a change.
  kj::Promise<Result<Stored>> follow(EtcdEndpoint& endpoint, std::string key, uint64_t fromRevision,
                                     uint64_t knownRevision, bool keyWasRead);
  /// Reads the key before it calls follow() again, because the member may return without its data.
  /// `keyWasRead`: the key was read already.
  kj::Promise<Result<Stored>> reopenWatch(EtcdEndpoint& endpoint, std::string key, uint64_t fromRevision,
                                          uint64_t knownRevision);
  kj::Promise<void> after(uint64_t milliseconds);

  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  const EtcdOptions options_;
  std::vector<std::unique_ptr<EtcdEndpoint>> endpoints_;
  std::string trouble_;
  kj::TaskSet tasks_;  // requests still in flight after the first answer
};

}  // namespace psd
