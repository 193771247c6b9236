#include "server/limits/descriptor_budget.h"

#include <memory>
#include <string>
#include <vector>

#include "server/push/shared_ring.h"
#include "test/support/catch.h"

namespace psd::descriptor_budget_test {
namespace {

using Catch::Contains;

DaemonConfig listeningOn(const std::vector<std::string>& addresses) {
  DaemonConfig config;
  for (const std::string& address : addresses) config.listen.push_back(parseAddress(address).value());
  return config;
}

TEST_CASE("connections get the descriptors that the daemon itself does not need") {
  CHECK(DescriptorBudget{100, 40, 1}.connectionsMax() == 60);
  CHECK(DescriptorBudget{101, 40, 2}.connectionsMax() == 30);
  CHECK(DescriptorBudget{41, 40, 1}.connectionsMax() == 1);
  CHECK(DescriptorBudget{41, 40, 2}.connectionsMax() == 0);
  CHECK(DescriptorBudget{40, 40, 1}.connectionsMax() == 0);
  CHECK(DescriptorBudget{3, 40, 1}.connectionsMax() == 0);
  CHECK(DescriptorBudget{UINT64_MAX, 40, 2}.connectionsMax() == UINT64_MAX);
  for (const uint64_t perConnection : {1, 2}) {
    DescriptorBudget budget{0, 40, perConnection};
    budget.limit = budget.limitFor(1000);
    CHECK(budget.connectionsMax() == 1000);
    budget.limit--;
    CHECK(budget.connectionsMax() == 999);
  }
}

TEST_CASE("the reserve grows with the event loops, the addresses and the open descriptors") {
  const DaemonConfig one = listeningOn({"tcp://localhost:5500"});
  const DescriptorBudget base = divideDescriptors(one, 1024, 5);
  CHECK(base.limit == 1024);
  CHECK(base.perConnection == 1);
  CHECK(base.kept > 5 + 3 * 2 + 2);
  CHECK(divideDescriptors(one, 1024, 9).kept == base.kept + 4);
  DaemonConfig more = one;
  more.threads = 4;
  CHECK(divideDescriptors(more, 1024, 5).kept == base.kept + 3 * 3);
  CHECK(divideDescriptors(listeningOn({"tcp://localhost:1", "tcp://*:2"}), 1024, 5).kept == base.kept + 2);
}

TEST_CASE("a connection over a Unix socket may take a ring's descriptor too") {
  DaemonConfig both = listeningOn({"tcp://localhost:5500", "unix:///tmp/psd.sock"});
  CHECK(divideDescriptors(both, 1024, 5).perConnection == 2);
  both.limits.ringBytes = 0;
  CHECK(divideDescriptors(both, 1024, 5).perConnection == 1);
}

TEST_CASE("a limit with more connections than fit gets a one-line hint how to raise it") {
  const DescriptorBudget budget{64, 46, 1};
  CHECK(budget.shortfall(18).empty());
  const std::string line = budget.shortfall(19);
  for (const char* part :
       {"limits.connections asks for 19 ", "gets 18:", " 64 files", " 65 ", "ulimit -n", "LimitNOFILE"}) {
    CHECK_THAT(line, Contains(part));
  }
  CHECK(line.find('\n') == std::string::npos);
  CHECK(DescriptorBudget{}.shortfall(UINT32_MAX).empty());
}

TEST_CASE("a limit that leaves no connection is an error that names a sufficient one") {
  PSD_REQUIRE_OK((DescriptorBudget{47, 46, 1}.check()));
  const Status none = DescriptorBudget{46, 46, 1}.check();
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ErrorCode::unavailable);
  for (const char* part : {"limits.connections", " 46 files", " needs 47", "ulimit -n"}) {
    CHECK_THAT(none.message(), Contains(part));
  }
}

TEST_CASE("a ring takes one of the descriptors left for rings, until its memory is freed") {
  const auto bytes = ByteBudget::make(1 << 20), files = ByteBudget::make(1);
  const Limits limits;
  auto first = SharedRing::make(4096, limits, *bytes, *files);
  PSD_REQUIRE_OK(first);
  const auto second = SharedRing::make(4096, limits, *bytes, *files);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::overloaded);
  CHECK_THAT(second.message(), Contains("file descriptor"));
  CHECK(bytes->used() == 4096);
  std::shared_ptr<SharedMemory> kept = (*first)->memory();
  first->reset();
  CHECK(bytes->used() == 4096);
  CHECK_FALSE(SharedRing::make(4096, limits, *bytes, *files).ok());
  kept = nullptr;
  CHECK(bytes->used() == 0);
  PSD_REQUIRE_OK(SharedRing::make(4096, limits, *bytes, *files));
}

TEST_CASE("this process has some descriptors, and reserves more than are open") {
  const DescriptorBudget own = ownDescriptors(listeningOn({"tcp://localhost:5500"}));
  CHECK(own.limit > 0);
  CHECK(own.kept > 3 + 6);
}

}  // namespace
}  // namespace psd::descriptor_budget_test
