#include "test/support/local_server.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include <kj/async-io.h>

#include "server/client/admin_client.h"
#include "server/daemon/server.h"
#include "test/support/test_device.h"

namespace psd::testing {
namespace {

constexpr std::chrono::seconds kAdminTimeout{60};

void endUnlessOk(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "LocalServer: %s\n", status.message().c_str());
  std::abort();
}

/// Returns the result of `call`, run on its own thread: a call to the daemon needs a loop, and the test's
/// thread may have one already.
template <class Call>
auto elsewhere(const Call& call) {
  return std::async(std::launch::async, call).get();
}

Address parsed(const std::string& address) { return parseAddress(address).value(); }

}  // namespace

LocalServer::LocalServer(nlohmann::ordered_json config, std::shared_ptr<Backend> device) {
  auto loaded = readDaemonConfig(completed(std::move(config)));
  endUnlessOk(loaded.status());
  std::promise<std::string> started;
  auto address = started.get_future();
  if (!device) device = testsCuda() ? openTestCuda() : makeCpuBackend(sharesWeights(loaded->config));
  thread_ = std::thread([this, loaded = *loaded, device, started = std::move(started)]() mutable {
    auto io = kj::setupAsyncIo();
    auto env = makePosixEnv();
    Server server(io, loaded, {device}, *env, [this] {
      const std::lock_guard lock(mutex_);
      return readDaemonConfig(next_);
    });
    endUnlessOk(server.start());
    loops_ = server.loops().wait(io.waitScope);
    controlLoop_ = &server.controlLoop();
    started.set_value(server.addresses().front().toString());
    const auto whenQuiesced = [this] {
      const std::lock_guard lock(mutex_);
      whenQuiet_();
      return Status();
    };
    server.run(whenQuiesced).wait(io.waitScope);
  });
  address_ = address.get();
}

nlohmann::ordered_json LocalServer::completed(nlohmann::ordered_json config) const {
  config["listen"] = {"tcp://127.0.0.1:0", unixAddress()};
  if (config.contains("index")) {  // one of several
    config["listen"].push_back(config["daemons"][config["index"].get<size_t>()]);
  }
  config["device"] = "cpu";
  return config;
}

void LocalServer::setWhenQuiet(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  whenQuiet_ = std::move(work);
}

Result<std::string> LocalServer::reload(nlohmann::ordered_json config) {
  {
    const std::lock_guard lock(mutex_);
    next_ = completed(std::move(config));
  }
  return elsewhere([this] { return reloadDaemon(parsed(unixAddress()), kAdminTimeout); });
}

LocalServer::~LocalServer() {
  loops_.clear();
  endUnlessOk(
      elsewhere([this] { return stopDaemon(parsed(unixAddress()), "end of the test", kAdminTimeout); }));
  thread_.join();
}

nlohmann::ordered_json LocalServer::status() const {
  const auto text = elsewhere([this] { return fetchStatusJson(parsed(unixAddress()), kAdminTimeout); });
  endUnlessOk(text.status());
  return nlohmann::ordered_json::parse(*text);
}

nlohmann::ordered_json LocalServer::statusWhen(
    const std::function<bool(const nlohmann::ordered_json&)>& condition) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (;;) {
    nlohmann::ordered_json now = status();
    if (condition(now)) return now;
    if (std::chrono::steady_clock::now() > deadline) {
      endUnlessOk(Error{ErrorCode::deadlineExceeded,
                        "timed out waiting for a status; the last one is " + now.dump()});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace psd::testing
