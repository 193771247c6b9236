// A trainer whose gradients are all −1: under SGD with a rate of 1 every parameter counts the pushes that are
// in it. Writes a line to a file for each push that was applied, so that whoever kills it knows what was
// promised.
//
//   counting_trainer ADDRESS[,ADDRESS…] RANK WORLD_SIZE PUSHES INFLIGHT FILE DEVICE CHUNK
//
// SIGTERM: no more pushes; it waits for the answers of those under way, and leaves.
// DEVICE: cpu, or cuda:0, where gradients and parameters are in that device's memory as far as the daemon
// shares memory of its own. INFLIGHT 0: each gradient is that of the parameters that were pulled just before,
// as synchronous rounds ask; what came too late is done again. CHUNK: bytes of a slice at most.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "test/fault/counting_model.h"
#include "test/fault/patient_join.h"
#include "test/support/arena_values.h"
#include "trainer/client/transport/device_copier.h"

namespace psd {
namespace {

const ModelSpec& kModel = testing::kCountingModel;
constexpr std::chrono::seconds kPatience{120};

volatile std::sig_atomic_t toldToEnd = 0;

struct Order {
  std::vector<std::string> addresses;
  Membership membership;
  uint64_t pushes = 0;
  size_t inflight = 1;  // 0: in rounds
  std::string file;
  bool onDevice = false;
  uint64_t chunkBytes = 0;
};

/// Where the trainer's values are. Owned by one thread.
struct Arrays {
  std::span<float> values;
  std::span<const float> gradient;
};

std::vector<float> all(float value) { return testing::everyParameter(kModel, value); }

Result<std::unique_ptr<Client>> join(const Order& order, const std::vector<float>& zeros) {
  ClientOptions options;
  options.servers = order.addresses;
  options.chunkBytes = options.deviceChunkBytes = order.chunkBytes;
  options.connectTimeout = options.retryTimeout = kPatience;
  if (order.onDevice) options.cudaDevice = 0;
  return testing::joinPatiently(options, order.membership, kModel, zeros, kPatience);
}

Status note(const Order& order, int file) {
  if (write(file, "1\n", 2) == 2) return {};
  return {ErrorCode::io, "cannot write to '" + order.file + "'"};
}

Status pushAll(Client& client, const Order& order, const Arrays& arrays, int file) {
  std::deque<Pending<PushInfo>> open;
  for (uint64_t step = 1;; step++) {
    const bool more = step <= order.pushes && toldToEnd == 0;
    if (more) open.push_back(client.push(Step{step}, arrays.gradient, 1, {}));
    if (more && open.size() < order.inflight) continue;
    if (open.empty()) return {};
    PSD_RETURN_IF_ERROR(open.front().wait());
    open.pop_front();
    PSD_RETURN_IF_ERROR(note(order, file));
  }
}

Status pushInRounds(Client& client, const Order& order, const Arrays& arrays, int file) {
  uint64_t applied = 0;
  for (uint64_t step = 1; applied < order.pushes && toldToEnd == 0; step++) {
    PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client.pull(arrays.values).wait());
    PSD_ASSIGN_OR_RETURN(const PushInfo pushed,
                         client.push(Step{step}, arrays.gradient, 1, pulled.versions).wait());
    if (pushed.outcome != PushOutcome::applied) continue;
    applied++;
    PSD_RETURN_IF_ERROR(note(order, file));
  }
  return {};
}

Status run(const Order& order) {
  // These outlive the client.
  const std::vector<float> zeros = all(0), gradient = all(-1);
  std::vector<float> values = zeros;
  std::unique_ptr<DeviceCopier> copier;
  std::unique_ptr<DeviceCopier::Array> valuesOnDevice, gradientOnDevice;
  const int file = open(order.file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0) return {ErrorCode::io, "cannot open '" + order.file + "'"};
  PSD_ASSIGN_OR_RETURN(auto client, join(order, zeros));
  Arrays arrays{values, gradient};
  if (order.onDevice && client->useDeviceMemory()) {
    PSD_ASSIGN_OR_RETURN(copier, DeviceCopier::make(0));
    PSD_ASSIGN_OR_RETURN(valuesOnDevice, copier->allocate(values));
    PSD_ASSIGN_OR_RETURN(gradientOnDevice, copier->allocate(gradient));
    arrays = {valuesOnDevice->span(), gradientOnDevice->span()};
  }
  PSD_RETURN_IF_ERROR((order.inflight == 0 ? pushInRounds : pushAll)(*client, order, arrays, file));
  return client->leave();
}

}  // namespace
}  // namespace psd

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr,
                 "usage: counting_trainer ADDRESS RANK WORLD_SIZE PUSHES INFLIGHT FILE DEVICE CHUNK\n");
    return 2;
  }
  std::signal(SIGTERM, [](int) { psd::toldToEnd = 1; });
  const auto number = [&](int index) { return std::strtoull(argv[index], nullptr, 10); };
  const psd::Order order{psd::testing::splitAt(',', argv[1]),
                         {psd::Rank{static_cast<uint32_t>(number(2))}, static_cast<uint32_t>(number(3))},
                         number(4),
                         number(5),
                         argv[6],
                         std::string(argv[7]) != "cpu",
                         number(8)};
  const psd::Status status = psd::run(order);
  if (!status.ok()) std::fprintf(stderr, "counting_trainer: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
