// A trainer whose own device fails: its transfers end with that error, and it does not reconnect to a daemon.

#include <chrono>
#include <future>
#include <vector>

#include "test/cuda/device_array.h"
#include "test/cuda/emulated/device.h"
#include "test/integration/daemon_process.h"
#include "test/support/arena_values.h"
#include "trainer/client/api/client.h"

namespace psd::trainer_device_failure_test {
namespace {

using namespace testing;
using Catch::Matchers::Contains;

constexpr int kDevice = 1;  // of this process; other tests use the first

TEST_CASE("Device ring: a trainer whose device fails gets the error, and does not reconnect forever") {
  const ModelSpec model{"net", {{"w", DType::f32, {5000}}}};
  TempDir folder;
  DaemonProcess daemon{folder};
  setenv("PSD_TEST_DEVICE", "cuda:0", 1);
  daemon.start({"policy.type=locked"});
  ClientOptions options;
  options.servers = {daemon.address()};
  options.cudaDevice = kDevice;
  int events = 0;
  options.onEvent = [&](const ClientEvent&) { events++; };
  const auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  const std::vector<float> ones = everyParameter(model, 1);
  PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, model, [&] { return std::span<const float>(ones); }));
  REQUIRE((*client)->useDeviceMemory());
  REQUIRE(cudaSetDevice(kDevice) == cudaSuccess);
  const DeviceArray values(ones), gradient(ones);
  PSD_REQUIRE_OK((*client)->push(Step{1}, gradient.span(), 1, {}).wait());

  emulated::failDevice(kDevice);
  for (const bool pulls : {false, true}) {
    INFO((pulls ? "a pull" : "a push"));
    const Status status = pulls ? (*client)->pull(values.span()).wait().status()
                                : (*client)->push(Step{2}, gradient.span(), 1, {}).wait().status();
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::internal);
    CHECK_THAT(status.message(), Contains("cuda:1: "));
  }
  CHECK(events == 0);
  CHECK(daemon.status()["trainers"][0]["rank"] == 0);
}

}  // namespace
}  // namespace psd::trainer_device_failure_test
