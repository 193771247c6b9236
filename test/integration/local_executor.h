#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/client/io_thread.h"
#include "trainer/executor/executor.h"
#include "trainer/executor/executor_config.h"
#include "trainer/executor/executor_server.h"
#include "trainer/executor/model_devices.h"

namespace psd::testing {

/// An executor in this process, on a thread of its own and on a Unix socket. Owned by one thread.
class LocalExecutor {
 public:
  using Wrap = std::function<std::unique_ptr<ExecutionModel>(std::unique_ptr<ExecutionModel>)>;

  /// `config` as in a configuration file, without `listen`; the module defaults to mlp on the CPU. `wrap`:
  /// returns a replacement that owns the module; null: the module itself.
  LocalExecutor(const std::string& daemon, nlohmann::ordered_json config, const Wrap& wrap = nullptr) {
    config["server"] = daemon;
    config["listen"] = {address()};
    if (!config.contains("module")) config["module"] = "mlp";
    if (!config.contains("device")) config["device"] = "cpu";
    auto read = readExecutorConfig(config);
    PSD_REQUIRE_OK(read);
    auto model = buildModel(*read);
    PSD_REQUIRE_OK(model);
    if (wrap) *model = wrap(*std::move(model));
    ClientOptions options;
    options.servers = read->servers;
    options.connectTimeout = read->connectTimeout;
    io_.runSync([&](kj::AsyncIoContext& io) {
      auto made = Executor::make(*read, options, *std::move(model));
      PSD_REQUIRE_OK(made);
      executor_ = *std::move(made);
      auto sockets = listenOn(read->listen.front());
      PSD_REQUIRE_OK(sockets);
      std::vector<ListenSockets> listening;
      listening.push_back(*std::move(sockets));
      server_ = std::make_unique<ExecutorServer>(io, *executor_, std::move(listening));
    });
  }
  ~LocalExecutor() {
    io_.runSync([this](kj::AsyncIoContext&) {
      server_ = nullptr;
      executor_ = nullptr;
    });
  }

  std::string address() const { return "unix://" + folder_.file("executor.sock"); }
  nlohmann::ordered_json status() {
    return io_.runSync([this](kj::AsyncIoContext&) { return statusJson(executor_->status()); });
  }

 private:
  TempDir folder_;  // of the socket
  IoThread io_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<ExecutorServer> server_;
};

}  // namespace psd::testing
