#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "common/os/socket.h"
#include "test/integration/daemon_process.h"
#include "test/support/catch.h"
#include "trainer/client/handshake.h"
#include "trainer/client/transport/transports.h"

namespace psd::testing {

/// A single trainer with a daemon in its own process, below Channel: its connection and its transports, which
/// a suite drives directly. Owned by one thread.
struct TransportRig {
  static constexpr uint32_t kWindow = 4;  ///< slices in flight

  ~TransportRig() {
    if (transports.get() != nullptr) end({ErrorCode::unavailable, "the end of the test"});
  }

  /// Starts the daemon with these settings and joins it with the model. `cudaDevice`: of the trainer; −1:
  /// none.
  void join(const std::vector<std::string>& settings, const ModelSpec& model, Transport wanted,
            int cudaDevice = -1) {
    daemon.start(settings);
    auto fd = connectTo(parseAddress(daemon.address()).value(), std::chrono::seconds(60));
    PSD_REQUIRE_OK(fd);
    connection = kj::heap<DaemonConnection>(io, wire::wrapSocket(*io.lowLevelProvider, fd->release()),
                                            daemon.address(), std::chrono::microseconds(0), true);
    transports = kj::heap<Transports>(*connection, wanted, cudaDevice);
    PSD_REQUIRE_OK(wait(logIn(*connection, "a test", "")));
    JoinRequest request;
    request.incarnation = 1;
    auto in = wait(joinAs(*connection, request, model, UINT64_MAX));
    PSD_REQUIRE_OK(in);
    REQUIRE(in->answer.mustInitialize);
    terms = in->terms;
    PSD_REQUIRE_OK(wait(transports->open(std::move(in->offer), terms, kWindow, kWindow)));
  }
  /// Reports that the model is initialized.
  void initialized() {
    REQUIRE(wait(connection->trainer().initializedRequest().send().dropPipeline()).getStatus().isOk());
  }
  /// For up to a minute.
  template <class T>
  T wait(kj::Promise<T> promise) {
    return io.provider->getTimer().timeoutAfter(60 * kj::SECONDS, kj::mv(promise)).wait(io.waitScope);
  }
  /// Does what a Channel does with a connection that failed.
  void end(const Error& why) {
    connection->end(why);
    transports->close(why);
    connection->tearDown();
  }

  kj::AsyncIoContext io = kj::setupAsyncIo();
  TempDir folder;
  DaemonProcess daemon{folder};
  kj::Own<DaemonConnection> connection;
  kj::Own<Transports> transports;
  SessionTerms terms;
};

}  // namespace psd::testing
