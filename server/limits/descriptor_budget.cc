#include "server/limits/descriptor_budget.h"

#include <algorithm>

#include <sys/resource.h>

#include "common/os/host.h"
#include "server/limits/operator_reserve.h"

namespace psd {
namespace {

constexpr uint64_t kPerLoop = 3;        // kj: epoll, eventfd, signalfd
constexpr uint64_t kPerTcpAddress = 2;  // a name may resolve to one address per family
constexpr uint64_t kPerUnixAddress = 1;
// A segment of the log and the next one, the files of a checkpoint, their folders and the lock, the
// parameters' memory files, the configuration and the log file when they are reopened, a name lookup, /proc
// for the status, a connection accepted to be refused; and the same number again.
constexpr uint64_t kOwnWork = 32;
constexpr uint64_t kOpenAtLeast = 3;  // standard input, output and error

}  // namespace

uint64_t DescriptorBudget::connectionsMax() const {
  if (limit == UINT64_MAX) return UINT64_MAX;
  return limit < kept ? 0 : (limit - kept) / perConnection;
}

std::string DescriptorBudget::shortfall(uint32_t connections) const {
  if (connections <= connectionsMax()) return "";
  const char* const each = perConnection == 1 ? "1" : "2, one for a ring (limits.ring_bytes),";
  return "limits.connections asks for " + std::to_string(connections) + " connections and gets " +
         std::to_string(connectionsMax()) + ": this process may have " + std::to_string(limit) +
         " files open, keeps " + std::to_string(kept) + " for its own work, and a connection takes " + each +
         " of the rest; for all of them raise the limit to " + std::to_string(limitFor(connections)) +
         " (ulimit -n, LimitNOFILE of systemd)";
}

Status DescriptorBudget::check() const {
  if (connectionsMax() > 0) return {};
  return {ErrorCode::unavailable, "limits.connections: not even one connection fits: this process may have " +
                                      std::to_string(limit) + " files open and needs " +
                                      std::to_string(limitFor(1)) +
                                      "; raise the limit (ulimit -n, LimitNOFILE of systemd)"};
}

DescriptorBudget divideDescriptors(const DaemonConfig& config, uint64_t limit, uint64_t open) {
  DescriptorBudget budget;
  budget.limit = limit;
  const uint64_t loops = config.threads + uint64_t{1};  // plus the control loop
  budget.kept = open + loops * kPerLoop + kOwnWork + kOperatorConnections;
  bool atUnixSocket = false;
  for (const Address& address : config.listen) {
    const bool local = address.kind == Address::Kind::unixSocket;
    budget.kept += local ? kPerUnixAddress : kPerTcpAddress;
    atUnixSocket = atUnixSocket || local;
    if (local && config.limits.ringBytes > 0) budget.perConnection = 2;
  }
  if (atUnixSocket) budget.kept += kLocalOperatorConnections;
  for (const Address& address : config.http.listen) {
    budget.kept += address.kind == Address::Kind::unixSocket ? kPerUnixAddress : kPerTcpAddress;
  }
  if (!config.http.listen.empty()) budget.kept += config.http.connections + uint64_t{1};  // one to refuse
  return budget;
}

DescriptorBudget ownDescriptors(const DaemonConfig& config) {
  rlimit limit{};
  const bool bounded = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return divideDescriptors(config, bounded ? limit.rlim_cur : UINT64_MAX,
                           std::max(openDescriptors(), kOpenAtLeast));
}

}  // namespace psd
