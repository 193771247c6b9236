#include "common/wire/buffer_pool.h"

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "test/support/catch.h"

namespace psd::wire {
namespace {

constexpr size_t kMiB = 1 << 20;

/// Whether the page is mapped.
bool isMapped(std::byte* page) {
  unsigned char resident = 0;
  return mincore(page, 1, &resident) == 0;
}

size_t residentPages(std::byte* begin, size_t bytes) {
  std::vector<unsigned char> pages(bytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  REQUIRE(mincore(begin, bytes, pages.data()) == 0);
  size_t resident = 0;
  for (unsigned char page : pages) resident += page & 1;
  return resident;
}

TEST_CASE("a buffer has the next power of two, aligned, and can be filled") {
  auto pool = BufferPool::make(kMiB);
  const std::vector<std::pair<size_t, size_t>> sizes = {
      {0, 4096},         {1, 4096},    {4096, 4096},         {4097, 8192},
      {100'000, 131072}, {kMiB, kMiB}, {2 * kMiB, 2 * kMiB}, {2 * kMiB + 1, 4 * kMiB}};
  for (auto [bytes, capacity] : sizes) {
    INFO(bytes << " bytes");
    auto buffer = pool->take(bytes);
    REQUIRE(buffer.capacity() == capacity);
    CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % 4096 == 0);
    std::memset(buffer.data(), 0x5a, capacity);
  }
}

TEST_CASE("a returned buffer is lent again for its size only") {
  auto pool = BufferPool::make(64 * kMiB);
  for (size_t bytes : {size_t{4096}, 3 * kMiB}) {
    INFO(bytes << " bytes");
    std::byte* first = nullptr;
    {
      auto buffer = pool->take(bytes);
      first = buffer.data();
    }
    auto other = pool->take(bytes * 4);
    CHECK(other.data() != first);
    auto again = pool->take(bytes - 100);
    CHECK(again.data() == first);
    auto more = pool->take(bytes);
    CHECK(more.data() != first);
  }
}

TEST_CASE("buffers on loan do not overlap") {
  auto pool = BufferPool::make(kMiB);
  std::vector<BufferPool::Buffer> lent;
  std::set<std::byte*> begins;
  for (int i = 0; i < 20; i++) {
    lent.push_back(pool->take(4096));
    begins.insert(lent.back().data());
    std::memset(lent.back().data(), i, 4096);
  }
  CHECK(begins.size() == lent.size());
  for (int i = 0; i < 20; i++) CHECK(lent[i].data()[4095] == static_cast<std::byte>(i));
}

TEST_CASE("a moved buffer is returned once") {
  auto pool = BufferPool::make(kMiB);
  auto first = pool->take(4096), second = pool->take(4096);
  std::byte* data = first.data();
  BufferPool::Buffer moved = std::move(first);
  CHECK(first.data() == nullptr);
  CHECK(moved.data() == data);
  second = std::move(moved);
  CHECK(second.data() == data);
  CHECK(second.capacity() == 4096);
}

TEST_CASE("the pool holds no more than its limit") {
  auto pool = BufferPool::make(4 * kMiB);
  std::byte *first = nullptr, *second = nullptr;
  {
    auto a = pool->take(4 * kMiB);
    auto b = pool->take(4 * kMiB);
    second = b.data();
    first = a.data();
    b = BufferPool::Buffer();  // is returned first, and fills the pool
  }
  CHECK(isMapped(second));
  CHECK_FALSE(isMapped(first));
  CHECK(pool->take(4 * kMiB).data() == second);
}

TEST_CASE("lent buffers do not count as held") {
  auto pool = BufferPool::make(4 * kMiB);
  std::byte* data = nullptr;
  for (int i = 0; i < 5; i++) {
    auto buffer = pool->take(4 * kMiB);
    if (i > 0) CHECK(buffer.data() == data);
    data = buffer.data();
  }
}

TEST_CASE("a large buffer takes no memory before it is written") {
  auto pool = BufferPool::make(0);
  auto buffer = pool->take(64 * kMiB);
  CHECK(residentPages(buffer.data(), buffer.capacity()) == 0);
  buffer.data()[10] = std::byte{1};
  CHECK(residentPages(buffer.data(), buffer.capacity()) > 0);
  CHECK(residentPages(buffer.data(), buffer.capacity()) <= 2 * kMiB / 4096);  // at most one huge page
}

TEST_CASE("a pool lives as long as its buffers, and frees what it holds when it ends") {
  auto pool = BufferPool::make(64 * kMiB);
  auto buffer = pool->take(4 * kMiB);
  std::byte* held = nullptr;
  {
    auto other = pool->take(2 * kMiB);
    held = other.data();
  }
  std::weak_ptr<BufferPool> watch = pool;
  pool.reset();
  CHECK_FALSE(watch.expired());
  buffer.data()[0] = std::byte{1};
  CHECK(isMapped(held));
  std::byte* data = buffer.data();
  { auto last = std::move(buffer); }
  CHECK(watch.expired());
  CHECK_FALSE(isMapped(held));
  CHECK_FALSE(isMapped(data));
}

}  // namespace
}  // namespace psd::wire
