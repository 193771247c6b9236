#include "common/os/shared_memory.h"

#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test/support/catch.h"

namespace psd::os_shared_memory_test {
namespace {

constexpr uint64_t kBytes = 10'000;  // not whole pages

std::shared_ptr<SharedMemory> make(SharedAccess others) {
  auto memory = SharedMemory::create("psd-test", kBytes, others);
  PSD_REQUIRE_OK(memory);
  return *memory;
}

}  // namespace

TEST_CASE("shared memory: what one side writes the other reads") {
  auto near = make(SharedAccess::readOnly);
  auto far = SharedMemory::open(near->fd(), kBytes, SharedAccess::readOnly);
  PSD_REQUIRE_OK(far);
  CHECK((*far)->data()[kBytes - 1] == std::byte{0});
  near->data()[kBytes - 1] = std::byte{7};
  CHECK((*far)->data()[kBytes - 1] == std::byte{7});
  near.reset();  // the memory lives as long as it is mapped
  CHECK((*far)->data()[kBytes - 1] == std::byte{7});
}

TEST_CASE("shared memory: a receiver of read-only memory cannot write it in any way") {
  auto memory = make(SharedAccess::readOnly);
  CHECK(!SharedMemory::open(memory->fd(), kBytes, SharedAccess::readWrite).ok());
  CHECK(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd(), 0) == MAP_FAILED);
  CHECK(pwrite(memory->fd(), "x", 1, 0) < 0);
  auto far = SharedMemory::open(memory->fd(), kBytes, SharedAccess::readOnly);
  PSD_REQUIRE_OK(far);
  CHECK(mprotect((*far)->data(), kBytes, PROT_READ | PROT_WRITE) != 0);
  CHECK(fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_WRITE) != 0);  // would require the owner's mapping to be
                                                               // removed
}

TEST_CASE("shared memory: its size cannot be changed") {
  for (SharedAccess access : {SharedAccess::readOnly, SharedAccess::readWrite}) {
    auto memory = make(access);
    CHECK(ftruncate(memory->fd(), 0) != 0);
    CHECK(ftruncate(memory->fd(), 2 * kBytes) != 0);
  }
}

TEST_CASE("shared memory: a receiver of writable memory writes it") {
  auto near = make(SharedAccess::readWrite);
  auto far = SharedMemory::open(near->fd(), kBytes, SharedAccess::readWrite);
  PSD_REQUIRE_OK(far);
  (*far)->data()[17] = std::byte{9};
  CHECK(near->data()[17] == std::byte{9});
}

TEST_CASE("shared memory: a file that is too short, or can shrink, is rejected") {
  auto memory = make(SharedAccess::readOnly);
  OwnFd unsealed(memfd_create("psd-test", MFD_CLOEXEC));
  REQUIRE(ftruncate(unsealed.get(), kBytes) == 0);
  struct Case {
    int fd;
    uint64_t bytes;
  };
  for (const Case& each : {Case{memory->fd(), kBytes + 1}, Case{memory->fd(), UINT64_MAX},
                           Case{memory->fd(), 0}, Case{unsealed.get(), kBytes}, Case{-1, kBytes}}) {
    auto opened = SharedMemory::open(each.fd, each.bytes, SharedAccess::readOnly);
    REQUIRE(!opened.ok());
    CHECK(opened.error().code == ErrorCode::protocolMismatch);
  }
}

TEST_CASE("shared memory: a size beyond the system's limit is an error") {
  auto memory = SharedMemory::create("psd-test", uint64_t{1} << 62, SharedAccess::readOnly);
  REQUIRE(!memory.ok());
  CHECK(memory.error().code == ErrorCode::overloaded);
}

TEST_CASE("descriptors can be passed over Unix sockets only") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  OwnFd one(pair[0]), other(pair[1]), tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(canPassDescriptors(one.get()));
  CHECK(!canPassDescriptors(tcp.get()));
  CHECK(!canPassDescriptors(-1));
}

}  // namespace psd::os_shared_memory_test
