#include "server/policy/published_values.h"

#include <cmath>
#include <vector>

#include "common/codec/delta.h"
#include "test/support/catch.h"

namespace psd::published_values_test {
namespace {

using What = PublishedSlice::What;
using Values = std::vector<float>;

constexpr size_t kCount = 300;

/// Values that oscillate.
Values at(uint64_t version) {
  Values values(kCount);
  for (size_t i = 0; i < kCount; i++) {
    values[i] = std::sin(static_cast<float>(i)) + 0.01f * static_cast<float>((i + 3 * version) % 17);
  }
  return values;
}

/// A trainer's view, updated by the answers.
struct Peer {
  HeldValues held;
  Values values;

  void take(const PublishedSlice& slice, const Codec& codec) {
    if (slice.what == What::values) {
      const auto* const floats = reinterpret_cast<const float*>(slice.bytes.data());
      values.assign(floats, floats + slice.bytes.size() / sizeof(float));
    } else if (slice.what == What::delta) {
      PSD_REQUIRE_OK(codec.check(slice.bytes, values.size()));
      addDelta(codec, slice.bytes, values);
    }
    held = {slice.view, slice.version};
  }
};

PublishedSlice ask(PublishedValues& published, uint64_t version, const HeldValues& held, const Codec& codec,
                   uint64_t offset = 0) {
  const Values newest = at(version);
  return published.answer(0, offset, {newest, nullptr}, Version{version}, held, codec);
}

float largest(const Values& one, const Values& other) {
  float most = 0;
  for (size_t i = 0; i < one.size(); i++) most = std::max(most, std::abs(one[i] - other[i]));
  return most;
}

TEST_CASE("all trainers that pull differences hold the same bits, near the parameters, permanently") {
  for (const char* name : {"e3m0", "int4", "int8"}) {
    INFO(name);
    const Codec& codec = *findDecoder(name);
    PublishedValues published;
    Peer always, sometimes;
    for (uint64_t version = 1; version <= 200; version++) {
      const auto slice = ask(published, version, always.held, codec);
      CHECK(slice.what == (version == 1 ? What::values : What::delta));
      if (version > 1) CHECK(slice.bytes.size() < kCount * sizeof(float) / 3);
      always.take(slice, codec);
      CHECK(largest(always.values, at(version)) < 0.17f);
      if (version % 3 != 0) continue;
      const auto whole = ask(published, version, sometimes.held, codec);
      CHECK(whole.what == What::values);  // it has missed two
      sometimes.take(whole, codec);
      CHECK(sometimes.values == always.values);
    }
    // What was left out comes later: after rounds without changes they equal the parameters.
    const Values last = at(200);
    for (uint64_t version = 201; version < 260; version++) {
      always.take(published.answer(0, 0, {last, nullptr}, Version{version}, always.held, codec), codec);
    }
    CHECK(largest(always.values, last) < 1e-3f);
  }
}

TEST_CASE("a trainer with the newest values is answered so, and no difference is sent for another view") {
  const Codec& codec = *findDecoder("e3m0");
  PublishedValues published, other;
  Peer peer;
  peer.take(ask(published, 1, peer.held, codec), codec);
  CHECK(ask(published, 1, peer.held, codec).what == What::same);
  CHECK(ask(published, 1, peer.held, codec).bytes.empty());
  ask(other, 1, {}, codec);
  CHECK(ask(other, 2, peer.held, codec).what == What::values);
  // A pull that started before the newest version gets the newest.
  peer.take(ask(published, 2, peer.held, codec), codec);
  const auto older = ask(published, 1, {}, codec);
  CHECK(older.version == Version{2});
}

TEST_CASE("a slice that overlaps another one is sent whole, and is not held") {
  const Codec& codec = *findDecoder("e3m0");
  PublishedValues published;
  CHECK(ask(published, 1, {}, codec, 256).view != 0);
  CHECK(ask(published, 1, {}, codec, 128).view == 0);
  CHECK(ask(published, 1, {}, codec, 512).view == 0);
  CHECK(ask(published, 1, {}, codec, 1024).view != 0);
}

TEST_CASE("if a codec has no space for a difference the values are sent whole") {
  const Codec& codec = *findDecoder("e3m0");
  PublishedValues published;
  Peer peer;
  Values values(kCount, -3e38f);
  peer.take(published.answer(0, 0, {values, nullptr}, Version{1}, {}, codec), codec);
  values.assign(kCount, 3e38f);
  const auto slice = published.answer(0, 0, {values, nullptr}, Version{2}, peer.held, codec);
  REQUIRE(slice.what == What::values);
  peer.take(slice, codec);
  CHECK(peer.values == values);
}

}  // namespace
}  // namespace psd::published_values_test
