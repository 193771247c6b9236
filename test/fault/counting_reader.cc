// Reader for counting trainers. For each pull, prints the least and the greatest count of all pushes as a
// line on stdout; prints each event of its client on stderr. Exits with status 1 if a pull fails, or if a
// parameter counts fewer pushes than in the previous pull.
//
//   counting_reader ADDRESS[,ADDRESS…] asked|always
//
// asked: pulls once at its start and once for each SIGUSR1, and makes no call in between. always: pulls
// without a pause. SIGTERM: exits.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "test/fault/counting_model.h"
#include "trainer/client/api/client.h"

namespace psd {
namespace {

constexpr std::chrono::seconds kPatience{120};

/// Checks that pulled counts never decrease. Owned by one thread.
class Counts {
 public:
  Status pull(Client& client) {
    PSD_RETURN_IF_ERROR(client.pull(now_).wait());
    constexpr size_t kPeriod = testing::kCountingPeriod;
    float least = now_[kPeriod - 1], greatest = least;
    for (const TensorPlace& place : layout_.places()) {
      for (uint64_t i = place.begin + kPeriod - 1; i < place.begin + place.count; i += kPeriod) {
        if (now_[i] < before_[i]) return {ErrorCode::internal, "a parameter has lost what it counted"};
        least = std::min(least, now_[i]);
        greatest = std::max(greatest, now_[i]);
      }
    }
    before_ = now_;
    std::printf("%.0f %.0f\n", static_cast<double>(least), static_cast<double>(greatest));
    std::fflush(stdout);
    return {};
  }

 private:
  const ModelLayout layout_{testing::kCountingModel};
  std::vector<float> now_ = std::vector<float>(layout_.totalElements());
  std::vector<float> before_ = now_;
};

Status run(const std::vector<std::string>& servers, bool always, const sigset_t& signals) {
  ClientOptions options;
  options.servers = servers;
  options.connectTimeout = kPatience;
  options.onEvent = [](const ClientEvent& event) { std::fprintf(stderr, "%s\n", event.line.c_str()); };
  Counts counts;  // outlives the client
  PSD_ASSIGN_OR_RETURN(auto client, Client::connect(options));
  PSD_RETURN_IF_ERROR(client->observe(testing::kCountingModel));
  PSD_RETURN_IF_ERROR(counts.pull(*client));
  for (;;) {
    const timespec none{};
    const int signal = always ? sigtimedwait(&signals, nullptr, &none) : sigwaitinfo(&signals, nullptr);
    if (signal == SIGTERM) return {};
    PSD_RETURN_IF_ERROR(counts.pull(*client));
  }
}

}  // namespace
}  // namespace psd

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: counting_reader ADDRESS[,ADDRESS...] asked|always\n");
    return 2;
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before other threads exist
  const psd::Status status =
      psd::run(psd::testing::splitAt(',', argv[1]), std::string(argv[2]) == "always", signals);
  if (!status.ok()) std::fprintf(stderr, "counting_reader: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
