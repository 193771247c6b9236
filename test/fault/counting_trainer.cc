// A trainer whose gradients are whole numbers, so that under SGD with a learning rate of 1 the parameters
// show which pushes are in them. It keeps a ledger in a file, which a test reads after it kills the trainer.
//
//   counting_trainer ADDRESS[,ADDRESS…] RANK WORLD_SIZE PUSHES INFLIGHT FILE DEVICE CHUNK GRADIENTS
//
// GRADIENTS: `ones`, every gradient is −1. `cells`: each 16 parameters, which no shard divides, hold three
// for each rank from 0 to 4 (the number of pushes, the sum of kMarks[0] of their steps, and that of
// kMarks[1]), and last the number of pushes of all ranks; the trainer pulls before each push of a step that
// kPullEvery divides.
//
// Lines of the ledger, read by test/fault/ledgers.py; times in ns of the machine's monotonic clock:
//   S STEP TIME                                   a push is sent
//   A STEP TIME VERSION,… DAEMON:EPOCH,…          it was answered as applied
//   P TIME ANSWERED SENT LOW HIGH                 a pull, started when ANSWERED pushes of this process were
//                                                 answered and SENT sent; it shows LOW to HIGH of them
//   M ADDRESS,…                                   the model has moved to these daemons; the client is about
//                                                 to connect to them
//
// SIGTERM: sends no more pushes, waits for the answers of those in flight, and leaves. DEVICE: cpu, or
// cuda:0, where gradients and parameters are in that device's memory if the daemon shares memory of its own.
// INFLIGHT 0: each gradient is computed from the parameters pulled just before, as synchronous rounds
// require; a late step is repeated. CHUNK: maximum bytes of a slice.

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "test/fault/counting_model.h"
#include "test/fault/patient_join.h"
#include "test/support/arena_values.h"
#include "trainer/client/transport/device_copier.h"

namespace psd {
namespace {

const ModelSpec& kModel = testing::kCountingModel;
constexpr std::chrono::seconds kPatience{120};

volatile std::sig_atomic_t toldToEnd = 0;

constexpr size_t kPeriod = testing::kCountingPeriod;  // parameters in a cell group
constexpr size_t kCellsOfRank = 3;
constexpr uint32_t kRanksMax = (kPeriod - 1) / kCellsOfRank;
constexpr uint64_t kPullEvery = 8;

struct Order {
  std::vector<std::string> addresses;
  Membership membership;
  uint64_t pushes = 0;
  size_t inflight = 1;  // 0: in rounds
  std::string file;
  bool onDevice = false;
  uint64_t chunkBytes = 0;
  bool cells = false;
};

/// The trainer's buffers. Owned by one thread.
struct Arrays {
  std::span<float> values;
  std::span<const float> gradient;
};

/// What a push of that step adds to its rank's cells. No two pushes that are in flight together have the same
/// marks, so that a duplicated push cannot hide a lost one; small, so that float32 holds the sum of many.
std::array<float, kCellsOfRank> marksOf(uint64_t step) {
  constexpr uint64_t kAnyOdd = 0x9E3779B97F4A7C15;
  return {1, static_cast<float>(step % 67), static_cast<float>(step * kAnyOdd >> 58)};
}

std::vector<float> all(float value) { return testing::everyParameter(kModel, value); }

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Ledger of this trainer's pushes, in a file. Owned by one thread.
class Ledger {
 public:
  explicit Ledger(const std::string& path)
      : path_(path), file_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644)) {}

  Status sends(Step step) {
    sent_++;
    return write(fmt::format("S {} {}\n", step.value, now()));
  }
  Status answered(Step step, const PushInfo& info) {
    answered_++;
    std::string line = fmt::format("A {} {} ", step.value, now());
    for (size_t i = 0; i < info.versions.size(); i++) {
      line += fmt::format("{}{}", i > 0 ? "," : "", info.versions[i].value);
    }
    for (size_t i = 0; i < info.answeredBy.size(); i++) {
      line +=
          fmt::format("{}{:016x}:{}", i > 0 ? "," : " ", info.answeredBy[i].daemon, info.answeredBy[i].term);
    }
    return write(line + "\n");
  }
  Status pulled(float low, float high) {
    return write(fmt::format("P {} {} {} {:.0f} {:.0f}\n", now(), answered_, sent_, low, high));
  }
  Status moved(const std::vector<std::string>& to) { return write(fmt::format("M {}\n", joined(to, ","))); }

 private:
  Status write(const std::string& line) {
    if (::write(file_, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return {};
    return {ErrorCode::io, "cannot write to '" + path_ + "'"};
  }

  const std::string path_;
  const int file_;  // open until the process ends
  uint64_t sent_ = 0, answered_ = 0;
};

Result<std::unique_ptr<Client>> join(const Order& order, const std::vector<float>& zeros, Ledger& ledger) {
  ClientOptions options;
  options.servers = order.addresses;
  options.chunkBytes = options.deviceChunkBytes = options.ringChunkBytes = order.chunkBytes;
  options.connectTimeout = options.retryTimeout = kPatience;
  if (order.onDevice) options.cudaDevice = 0;
  options.onMove = [&ledger](const auto&, const auto& to) { (void)ledger.moved(to); };
  return testing::joinWithRetry(options, order.membership, kModel, zeros, kPatience);
}

Status pushAll(Client& client, const Order& order, const Arrays& arrays, Ledger& ledger) {
  std::deque<std::pair<Step, Pending<PushInfo>>> open;
  for (Step step{1};; step.value++) {
    const bool more = step.value <= order.pushes && toldToEnd == 0;
    if (more) {
      PSD_RETURN_IF_ERROR(ledger.sends(step));
      open.emplace_back(step, client.push(step, arrays.gradient, 1, {}));
    }
    if (more && open.size() < order.inflight) continue;
    if (open.empty()) return {};
    PSD_ASSIGN_OR_RETURN(const PushInfo pushed, open.front().second.wait());
    PSD_RETURN_IF_ERROR(ledger.answered(open.front().first, pushed));
    open.pop_front();
  }
}

/// Buffers that outlive the client that pushes cells. Owned by one thread.
struct CellArrays {
  explicit CellArrays(size_t inflight) : gradients(inflight, all(0)) {}
  std::vector<float> begin = all(0), values = all(0);  // of the first and of the latest pull
  std::vector<std::vector<float>> gradients;           // of the pushes in flight
};

/// Pushes gradients that identify their steps, and checks the pulled parameters against them. Owned by one
/// thread.
class CellPushes {
 public:
  CellPushes(Client& client, const Order& order, CellArrays& arrays, Ledger& ledger)
      : client_(client), order_(order), arrays_(arrays), ledger_(ledger) {}

  Status run() {
    PSD_RETURN_IF_ERROR(client_.pull(arrays_.begin).wait());
    for (uint64_t step = 1;; step++) {
      const bool more = step <= order_.pushes && toldToEnd == 0;
      if (more && step % kPullEvery == 0) PSD_RETURN_IF_ERROR(look());
      if (more) PSD_RETURN_IF_ERROR(push(Step{step}));
      if (more && open_.size() < order_.inflight) continue;
      if (open_.empty()) return look();
      PSD_ASSIGN_OR_RETURN(const PushInfo pushed, open_.front().second.wait());
      PSD_RETURN_IF_ERROR(ledger_.answered(open_.front().first, pushed));
      open_.pop_front();
    }
  }

 private:
  size_t ownCell() const { return order_.membership.rank.value * kCellsOfRank; }

  Status push(Step step) {
    std::vector<float>& gradient = arrays_.gradients[step.value % arrays_.gradients.size()];
    const auto marks = marksOf(step.value);
    for (const TensorPlace& place : layout_.places()) {
      for (size_t i = 0; i < place.count; i++) {
        const size_t cell = i % kPeriod, mine = cell - ownCell();
        gradient[place.begin + i] = mine < kCellsOfRank ? -marks[mine] : cell == kPeriod - 1 ? -1.0F : 0.0F;
      }
    }
    PSD_RETURN_IF_ERROR(ledger_.sends(step));
    open_.emplace_back(step, client_.push(step, gradient, 1, {}));
    return {};
  }

  /// The number of own pushes that a pull shows.
  Status look() {
    const std::vector<float>&values = arrays_.values, &begin = arrays_.begin;
    PSD_RETURN_IF_ERROR(client_.pull(arrays_.values).wait());
    float low = values[ownCell()] - begin[ownCell()], high = low;
    for (const TensorPlace& place : layout_.places()) {
      for (size_t i = place.begin + ownCell(); i < place.begin + place.count; i += kPeriod) {
        low = std::min(low, values[i] - begin[i]);
        high = std::max(high, values[i] - begin[i]);
      }
    }
    return ledger_.pulled(low, high);
  }

  const ModelLayout layout_{kModel};
  Client& client_;
  const Order& order_;
  CellArrays& arrays_;
  Ledger& ledger_;
  std::deque<std::pair<Step, Pending<PushInfo>>> open_;
};

Status pushInRounds(Client& client, const Order& order, const Arrays& arrays, Ledger& ledger) {
  uint64_t applied = 0;
  for (Step step{1}; applied < order.pushes && toldToEnd == 0; step.value++) {
    PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client.pull(arrays.values).wait());
    PSD_RETURN_IF_ERROR(ledger.sends(step));
    PSD_ASSIGN_OR_RETURN(const PushInfo pushed,
                         client.push(step, arrays.gradient, 1, pulled.versions).wait());
    if (pushed.outcome != PushOutcome::applied) continue;
    applied++;
    PSD_RETURN_IF_ERROR(ledger.answered(step, pushed));
  }
  return {};
}

Status run(const Order& order) {
  // These outlive the client.
  const std::vector<float> zeros = all(0), gradient = all(-1);
  std::vector<float> values = zeros;
  std::unique_ptr<DeviceCopier> copier;
  std::unique_ptr<DeviceCopier::Array> valuesOnDevice, gradientOnDevice;
  CellArrays cells(order.cells ? order.inflight : 0);
  Ledger ledger(order.file);
  PSD_ASSIGN_OR_RETURN(auto client, join(order, zeros, ledger));
  if (order.cells) {
    PSD_RETURN_IF_ERROR(CellPushes(*client, order, cells, ledger).run());
    return client->leave();
  }
  Arrays arrays{values, gradient};
  if (order.onDevice && client->useDeviceMemory()) {
    PSD_ASSIGN_OR_RETURN(copier, DeviceCopier::make(0));
    PSD_ASSIGN_OR_RETURN(valuesOnDevice, copier->allocate(values));
    PSD_ASSIGN_OR_RETURN(gradientOnDevice, copier->allocate(gradient));
    arrays = {valuesOnDevice->span(), gradientOnDevice->span()};
  }
  PSD_RETURN_IF_ERROR((order.inflight == 0 ? pushInRounds : pushAll)(*client, order, arrays, ledger));
  return client->leave();
}

}  // namespace
}  // namespace psd

int main(int argc, char** argv) {
  if (argc != 10) {
    std::fprintf(
        stderr,
        "usage: counting_trainer ADDRESS RANK WORLD_SIZE PUSHES INFLIGHT FILE DEVICE CHUNK GRADIENTS\n");
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
                         number(8),
                         std::string(argv[9]) == "cells"};
  if (order.cells &&
      (order.onDevice || order.inflight == 0 || order.membership.rank.value >= psd::kRanksMax)) {
    std::fprintf(stderr, "counting_trainer: cells go without a device and rounds, and with ranks below %u\n",
                 psd::kRanksMax);
    return 2;
  }
  const psd::Status status = psd::run(order);
  if (!status.ok()) std::fprintf(stderr, "counting_trainer: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
