#include "trainer/bench/processes.h"

#include <atomic>
#include <csignal>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

#include "test/support/catch.h"

namespace psd::bench_processes_test {
namespace {

using Catch::Matchers::Contains;

/// A number that forked processes share. Thread-safe.
class SharedCount {
 public:
  SharedCount()
      : memory_(mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
    count_ = new (memory_) Count(0);
  }
  ~SharedCount() { munmap(memory_, sizeof(Count)); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;

  void add() { ++*count_; }
  int value() const { return *count_; }

 private:
  using Count = std::atomic<int>;
  void* memory_;
  Count* count_;
};

}  // namespace

TEST_CASE("each process of a group returns a value, in the order of their numbers") {
  const pid_t parent = getpid();
  const auto results = runInProcesses(3, [&](uint32_t number, const Barrier&) -> Result<std::string> {
    // More than a socket holds, and with a zero in it.
    return std::string(300'000, static_cast<char>(number)) + (getpid() == parent ? "same" : "another");
  });
  PSD_REQUIRE_OK(results);
  REQUIRE(results->size() == 3);
  for (uint32_t number = 0; number < 3; number++) {
    CHECK((*results)[number] == std::string(300'000, static_cast<char>(number)) + "another");
  }
}

TEST_CASE("barrier() waits for every process of the group, each time") {
  constexpr int kRounds = 20, kProcesses = 4;
  SharedCount arrived;
  const auto results =
      runInProcesses(kProcesses, [&](uint32_t, const Barrier& barrier) -> Result<std::string> {
        bool isWhole = true;
        for (int round = 1; round <= kRounds; round++) {
          arrived.add();
          barrier();
          isWhole = isWhole && arrived.value() >= round * kProcesses;
          barrier();  // none is ahead while the count is read
          isWhole = isWhole && arrived.value() <= round * kProcesses + kProcesses;
        }
        return std::string(isWhole ? "whole" : "early");
      });
  PSD_REQUIRE_OK(results);
  CHECK(*results == std::vector<std::string>(kProcesses, "whole"));
  CHECK(arrived.value() == kRounds * kProcesses);
}

TEST_CASE("a process that fails, throws or dies is reported, and not waited for") {
  SharedCount finished;
  const auto failing = [&](const std::function<Result<std::string>()>& fail) {
    return runInProcesses(3,
                          [&](uint32_t number, const Barrier& barrier) -> Result<std::string> {
                            if (number == 1) return fail();
                            barrier();
                            finished.add();
                            return std::string();
                          })
        .status();
  };
  const Status refused = failing([] { return Error{ErrorCode::rankTaken, "refused"}; });
  CHECK(refused.error().code == ErrorCode::rankTaken);
  CHECK(refused.message() == "refused");
  CHECK_THAT(failing([]() -> Result<std::string> { throw std::bad_alloc(); }).message(),
             Contains("bad_alloc"));
  CHECK_THAT(failing([]() -> Result<std::string> {
               raise(SIGKILL);
               return std::string();
             }).message(),
             Contains("trainer process 1 was ended by signal 9"));
  CHECK_THAT(failing([]() -> Result<std::string> { _exit(3); }).message(), Contains("ended with status 3"));
  CHECK(finished.value() == 4 * 2);
}

}  // namespace psd::bench_processes_test
