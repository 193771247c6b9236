// A trainer whose gradients are all −1: under SGD with a rate of 1 every parameter counts the pushes that are
// in it. Writes a line to a file for each push that was applied, so that whoever kills it knows what was
// promised.
//
//   counting_trainer ADDRESS RANK WORLD_SIZE PUSHES INFLIGHT FILE
//
// INFLIGHT 0: each gradient is that of the parameters that were pulled just before, as synchronous rounds
// ask; what came too late is done again.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "common/types/model_layout.h"
#include "test/fault/patient_join.h"

namespace psd {
namespace {

const ModelSpec kModel{"counting", {{"a", DType::f32, {3000}}, {"b", DType::f32, {500}}}};
constexpr std::chrono::seconds kPatience{120};

struct Order {
  std::string address;
  Membership membership;
  uint64_t pushes = 0;
  size_t inflight = 1;  // 0: in rounds
  std::string file;
};

std::vector<float> all(float value) {
  const ModelLayout layout(kModel);
  std::vector<float> values(layout.totalElements(), 0.0f);
  for (const TensorPlace& place : layout.places()) {
    std::fill_n(values.begin() + static_cast<ptrdiff_t>(place.begin), place.count, value);
  }
  return values;
}

Result<std::unique_ptr<Client>> join(const Order& order, const std::vector<float>& zeros) {
  ClientOptions options;
  options.servers = {order.address};
  options.chunkBytes = 4096;
  options.connectTimeout = options.retryTimeout = kPatience;
  return testing::joinPatiently(options, order.membership, kModel, zeros, kPatience);
}

Status note(const Order& order, int file) {
  if (write(file, "1\n", 2) == 2) return {};
  return {ErrorCode::io, "cannot write to '" + order.file + "'"};
}

Status pushAll(Client& client, const Order& order, const std::vector<float>& gradient, int file) {
  std::deque<Pending<PushInfo>> open;
  for (uint64_t step = 1; step <= order.pushes || !open.empty(); step++) {
    if (step <= order.pushes) open.push_back(client.push(Step{step}, gradient, 1, {}));
    if (step < order.pushes && open.size() < order.inflight) continue;
    PSD_RETURN_IF_ERROR(open.front().wait());
    open.pop_front();
    PSD_RETURN_IF_ERROR(note(order, file));
  }
  return {};
}

Status pushInRounds(Client& client, const Order& order, const std::vector<float>& gradient, int file) {
  std::vector<float> values(gradient.size());
  uint64_t applied = 0;
  for (uint64_t step = 1; applied < order.pushes; step++) {
    PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client.pull(values).wait());
    PSD_ASSIGN_OR_RETURN(const PushInfo pushed, client.push(Step{step}, gradient, 1, pulled.versions).wait());
    if (pushed.outcome != PushOutcome::applied) continue;
    applied++;
    PSD_RETURN_IF_ERROR(note(order, file));
  }
  return {};
}

Status run(const Order& order) {
  const std::vector<float> zeros = all(0), gradient = all(-1);  // outlive the client
  const int file = open(order.file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0) return {ErrorCode::io, "cannot open '" + order.file + "'"};
  PSD_ASSIGN_OR_RETURN(auto client, join(order, zeros));
  PSD_RETURN_IF_ERROR((order.inflight == 0 ? pushInRounds : pushAll)(*client, order, gradient, file));
  return client->leave();
}

}  // namespace
}  // namespace psd

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: counting_trainer ADDRESS RANK WORLD_SIZE PUSHES INFLIGHT FILE\n");
    return 2;
  }
  const auto number = [&](int index) { return std::strtoull(argv[index], nullptr, 10); };
  const psd::Order order{argv[1],
                         {psd::Rank{static_cast<uint32_t>(number(2))}, static_cast<uint32_t>(number(3))},
                         number(4),
                         number(5),
                         argv[6]};
  const psd::Status status = psd::run(order);
  if (!status.ok()) std::fprintf(stderr, "counting_trainer: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
