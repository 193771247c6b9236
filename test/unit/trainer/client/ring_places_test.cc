#include "trainer/client/transport/ring_places.h"

#include <optional>

#include <kj/async-io.h>

#include "test/support/catch.h"

namespace psd::client_ring_places_test {
namespace {

using Place = RingPlaces::Place;

bool isBroken(kj::Promise<Place> promise, kj::WaitScope& scope) {
  return promise.then([](Place place) { return place.release(), false; })
      .catch_(
          [](kj::Exception&& exception) { return exception.getType() == kj::Exception::Type::DISCONNECTED; })
      .wait(scope);
}

TEST_CASE("the places of a ring are consecutive, and the one returned last is taken first") {
  RingPlaces places(256, 64, 3);
  Place first = places.take(), second = places.take(), third = places.take();
  CHECK(first.at() == 256);
  CHECK(second.at() == 320);
  CHECK(third.at() == 384);
  first.release();
  second.release();
  Place again = places.take();
  CHECK(again.at() == 320);
  again.release();
  third.release();
}

constexpr uint64_t kMiB = 1 << 20;

TEST_CASE("slices through a ring are a sixteenth of the model, between the limits") {
  const auto sizeFor = [](uint64_t modelBytes, uint64_t ringBytes = 64 * kMiB) {
    return ringSliceBytes(modelBytes, kMiB, 4 * kMiB, ringBytes);
  };
  CHECK(sizeFor(1000) == kMiB);
  CHECK(sizeFor(32 * kMiB - 1) == kMiB);
  CHECK(sizeFor(32 * kMiB) == 2 * kMiB);
  CHECK(sizeFor(50 * kMiB) == 3 * kMiB);
  CHECK(sizeFor(uint64_t{4} << 40) == 4 * kMiB);
  CHECK(sizeFor(64 * kMiB, 8 * kMiB) == 2 * kMiB);
  CHECK(sizeFor(64 * kMiB, 0) == kMiB);
  CHECK(ringSliceBytes(64 * kMiB, 64 << 10, 64 << 10, 64 * kMiB) == 64 << 10);  // --chunk 64K
}

TEST_CASE("a ring holds two large slices, or more small ones") {
  const auto windowFor = [](uint64_t elements, uint32_t most = 4) {
    return ringWindow({{.count = 16}, {.count = elements}}, most);
  };
  CHECK(windowFor(100) == 4);
  CHECK(windowFor(512 << 10) == 4);  // 2 MiB
  CHECK(windowFor(768 << 10) == 2);
  CHECK(windowFor(1 << 20) == 2);
  CHECK(windowFor(8 << 20) == 2);
  CHECK(ringWindow({}, 4) == 4);
}

TEST_CASE("waiters for a place are served in order, and cancelled ones are skipped") {
  auto io = kj::setupAsyncIo();
  RingPlaces places(0, 64, 1);
  Place only = places.take();
  auto first = places.takeWhenFree();
  std::optional<kj::Promise<Place>> gone = places.takeWhenFree();
  auto third = places.takeWhenFree();
  gone.reset();
  CHECK_FALSE(first.poll(io.waitScope));
  only.release();
  Place place = first.wait(io.waitScope);
  CHECK_FALSE(third.poll(io.waitScope));
  place.release();
  Place last = third.wait(io.waitScope);
  CHECK(last.at() == 0);
  last.release();
}

TEST_CASE("a place without an answer is never taken again, nor any other of its ring") {
  auto io = kj::setupAsyncIo();
  RingPlaces places(0, 64, 2);
  std::optional<Place> asked(places.take());
  Place other = places.take();
  auto waits = places.takeWhenFree();
  asked.reset();  // as when the connection breaks
  CHECK(isBroken(kj::mv(waits), io.waitScope));
  other.release();
  CHECK(isBroken(places.takeWhenFree(), io.waitScope));
  CHECK_THROWS_AS(places.take(), kj::Exception);
}

}  // namespace
}  // namespace psd::client_ring_places_test
