#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "common/wire/published_version.h"
#include "schema/psd.capnp.h"
#include "test/support/temp_dir.h"

namespace psd::testing {

/// A daemon that only serves versions, and answers as a test wants, on a thread of its own. Thread-safe.
class FakeVersions {
 public:
  /// What it serves; of its thread.
  struct Served {
    explicit Served(kj::Timer& timer) : timer(timer) {}

    kj::Timer& timer;
    DaemonAddresses daemons;  // empty: this one alone
    uint32_t index = 0;
    DaemonAddresses movedTo;
    std::map<uint64_t, VersionInfo> versions;
    std::map<uint64_t, std::vector<std::byte>> files;
    std::map<uint64_t, uint64_t> leases;  // numbers, by lease
    std::optional<Error> publishedError, leaseError;
    /// Whether calls are parked; nullptr: none is.
    std::function<bool()> leasesWait, readsWait;
    size_t lists = 0, pings = 0, leasing = 0, reading = 0;  // calls so far

    void add(VersionInfo version, std::vector<std::byte> file = {}) {
      if (!file.empty()) version.bytes = file.size();
      files[version.number] = std::move(file);
      versions[version.number] = std::move(version);
    }
    Result<VersionInfo> find(uint64_t number) const {
      const auto found = number == 0 && !versions.empty() ? std::prev(versions.end()) : versions.find(number);
      if (found != versions.end()) return found->second;
      return Error{ErrorCode::notReady, "version " + std::to_string(number) + " does not exist"};
    }
    /// Resolves once `waits` does not hold.
    kj::Promise<void> parked(const std::function<bool()>& waits) {
      if (!waits || !waits()) return kj::READY_NOW;
      return timer.afterDelay(2 * kj::MILLISECONDS).then([this, &waits] { return parked(waits); });
    }
  };

  FakeVersions() {
    std::promise<void> started;
    thread_ = std::thread([this, &started] { run(started); });
    started.get_future().wait();
  }
  ~FakeVersions() {
    executor_->executeSync([this] { stop_->fulfill(); });
    thread_.join();
  }
  FakeVersions(const FakeVersions&) = delete;
  FakeVersions& operator=(const FakeVersions&) = delete;

  std::string address() const { return "unix://" + folder_.file("fake.sock"); }
  /// Runs `work(served)` on its thread.
  template <class Work>
  auto change(Work work) {
    return executor_->executeSync([&] { return work(*served_); });
  }
  /// Closes all connections; clients may connect again.
  void disconnect() {
    change([this](Served&) { connections_.clear(); });
  }
  /// The model moves there.
  void moveTo(const DaemonAddresses& to) {
    change([&](Served& served) { served.movedTo = to; });
    disconnect();
  }

 private:
  class Reading final : public schema::Reading::Server {
   public:
    explicit Reading(Served& served) : served_(served) {}

   protected:
    kj::Promise<void> ping(PingContext) override {
      served_.pings++;
      return kj::READY_NOW;
    }
    kj::Promise<void> moved(MovedContext) override { return kj::NEVER_DONE; }
    kj::Promise<void> versions(VersionsContext context) override {
      served_.lists++;
      auto out = context.getResults().initVersions(static_cast<kj::uint>(served_.versions.size()));
      kj::uint i = 0;
      for (const auto& [number, version] : served_.versions) wire::writeVersion(version, out[i++]);
      return kj::READY_NOW;
    }
    kj::Promise<void> published(PublishedContext context) override {
      const uint64_t number = context.getParams().getNumber();
      if (served_.publishedError) {
        wire::writeVersion(Result<VersionInfo>(*served_.publishedError), context.getResults());
        return kj::READY_NOW;
      }
      const auto newest = served_.find(0);
      if (!newest.ok() || newest->number < number) {
        return served_.timer.afterDelay(2 * kj::MILLISECONDS).then([this, context]() mutable {
          return published(context);
        });
      }
      wire::writeVersion(newest, context.getResults());
      return kj::READY_NOW;
    }
    kj::Promise<void> leaseVersion(LeaseVersionContext context) override {
      served_.leasing++;
      return served_.parked(served_.leasesWait).then([this, context]() mutable {
        const auto params = context.getParams();
        const auto version =
            served_.leaseError ? Result<VersionInfo>(*served_.leaseError) : served_.find(params.getNumber());
        if (version.ok()) served_.leases[params.getLease()] = version->number;
        wire::writeVersion(version, context.getResults());
      });
    }
    kj::Promise<void> releaseVersion(ReleaseVersionContext context) override {
      served_.leases.erase(context.getParams().getLease());
      return kj::READY_NOW;
    }
    kj::Promise<void> readVersion(ReadVersionContext context) override {
      served_.reading++;
      return served_.parked(served_.readsWait).then([this, context]() mutable {
        const auto params = context.getParams();
        const std::vector<std::byte>& file = served_.files[params.getNumber()];
        auto out = context.getResults().initBytes(params.getCount());
        std::memcpy(out.begin(), file.data() + params.getOffset(), params.getCount());
      });
    }

   private:
    Served& served_;
  };

  class Login final : public schema::Login::Server {
   public:
    explicit Login(Served& served) : served_(served) {}

   protected:
    kj::Promise<void> login(LoginContext context) override {
      auto results = context.getResults();
      results.setProtocolVersion(wire::kProtocolVersion);
      results.initStatus().setOk();
      results.setReading(kj::heap<Reading>(served_));
      wire::writeDaemonAddresses(served_.daemons, results.initDaemons(sizeOf(served_.daemons)));
      results.setDaemon(served_.index);
      if (served_.movedTo.empty()) return kj::READY_NOW;
      results.setMove(1);
      wire::writeDaemonAddresses(served_.movedTo, results.initMovedTo(sizeOf(served_.movedTo)));
      return kj::READY_NOW;
    }

   private:
    static kj::uint sizeOf(const DaemonAddresses& daemons) { return static_cast<kj::uint>(daemons.size()); }

    Served& served_;
  };

  /// A client's connection.
  struct Connection {
    Connection(kj::Own<kj::AsyncIoStream> stream, Served& served)
        : stream(kj::mv(stream)),
          network(*this->stream, capnp::rpc::twoparty::Side::SERVER),
          rpc(capnp::makeRpcServer(network, kj::heap<Login>(served))) {}

    kj::Own<kj::AsyncIoStream> stream;
    capnp::TwoPartyVatNetwork network;
    capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
  };

  void run(std::promise<void>& started) {
    kj::AsyncIoContext io = kj::setupAsyncIo();
    Served served(io.provider->getTimer());
    served_ = &served;
    executor_ = kj::getCurrentThreadExecutor().addRef();
    auto stop = kj::newPromiseAndFulfiller<void>();
    stop_ = kj::mv(stop.fulfiller);
    auto at = io.provider->getNetwork().parseAddress(("unix:" + folder_.file("fake.sock")).c_str());
    auto listener = at.wait(io.waitScope)->listen();
    auto accepting = accept(*listener).eagerlyEvaluate(nullptr);
    started.set_value();
    stop.promise.wait(io.waitScope);
    connections_.clear();
  }
  kj::Promise<void> accept(kj::ConnectionReceiver& listener) {
    return listener.accept().then([this, &listener](kj::Own<kj::AsyncIoStream> stream) {
      connections_.push_back(std::make_unique<Connection>(kj::mv(stream), *served_));
      return accept(listener);
    });
  }

  const TempDir folder_;
  Served* served_ = nullptr;
  kj::Own<const kj::Executor> executor_;
  kj::Own<kj::PromiseFulfiller<void>> stop_;
  std::vector<std::unique_ptr<Connection>> connections_;  // of the thread

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd::testing
