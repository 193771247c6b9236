// The contract of every codec. A codec joins by its line in codec_list.h. Promises of a single codec:
// codec_promises_test.cc.

#include <algorithm>
#include <cmath>
#include <limits>

#include "test/contract/codec_trainer.h"

namespace psd::codec_contract_test {
namespace {

using testing::codecNamed;
using testing::CodecTrainer;
using testing::decoded;
using testing::EncodedBytes;
using testing::normalValues;
using testing::Random;

constexpr float kHuge = 1e38f;
const size_t kCounts[] = {1, 7, 31, 32, 33, 1000, 1023, 1024, 1025, 5000, 65535, 65536, 65537, 140'001};

std::vector<std::shared_ptr<const Codec>> allCodecs() {
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (const std::string_view name : codecNames()) codecs.push_back(codecNamed(name));
  for (const char* spec : {"topk:fraction=1", "topk:fraction=0.3", "randk:fraction=0.37", "randk:fraction=1",
                           "dgc:fraction=0.1,momentum=0"}) {
    codecs.push_back(codecNamed(spec));
  }
  return codecs;
}

/// Gradients of every kind that a codec has to handle.
std::vector<std::pair<std::string, std::vector<float>>> kinds(size_t count, Random& random) {
  std::vector<std::pair<std::string, std::vector<float>>> all;
  all.emplace_back("normal", normalValues(count, random));
  all.emplace_back("zeros", std::vector<float>(count));
  all.emplace_back("equal", std::vector<float>(count, -0.25f));
  all.emplace_back("denormal", normalValues(count, random, 1e-41f));
  all.emplace_back("huge", normalValues(count, random, kHuge / 8));
  all.emplace_back("largest", std::vector<float>(count, std::numeric_limits<float>::max()));
  std::vector<float> spike(count);
  spike[random.below(count)] = 3;
  all.emplace_back("spike", spike);
  std::vector<float> wide = normalValues(count, random);
  for (float& value : wide) value *= std::exp2(static_cast<float>(random.between(0, 60)) - 40);
  all.emplace_back("wide", wide);
  return all;
}

double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::fabs(value));
  return most;
}

TEST_CASE("decoded values are finite, no larger than the encoded ones, and nearer to them than zeros") {
  Random random(11);
  for (const auto& codec : allCodecs()) {
    for (const size_t count : kCounts) {
      for (const auto& [kind, values] : kinds(count, random)) {
        INFO(codec->spec() << ", " << count << " values, " << kind);
        EncodedBytes bytes(codec->encodedBytes(count));
        const Status status = codec->encode(values, count, bytes.data());
        if (!status.ok()) {
          // A codec may reject only values out of its range, and then the daemon would reject them too.
          CHECK(status.error().code == ErrorCode::nonFinite);
          CHECK(largest(values) > 65'504);
          CHECK_FALSE(codec->check(bytes.span(), count).ok());
          continue;
        }
        PSD_REQUIRE_OK(codec->check(bytes.span(), count));
        const std::vector<float> back = decoded(*codec, bytes, count);
        std::vector<float> lost(count);
        bool finite = true;
        for (size_t i = 0; i < count; i++) {
          finite = finite && std::isfinite(back[i]);
          lost[i] = static_cast<float>(static_cast<double>(values[i]) - back[i]);
        }
        CHECK(finite);
        // Half a step of the format: of a 7-bit fraction, or of bfloat16's smallest.
        CHECK(static_cast<double>(largest(back)) <= 1.005 * largest(values) + 0x1p-134);
        CHECK(squares(lost) <= 1.0001 * squares(values));
      }
    }
  }
}

TEST_CASE("no gradient is lost: decoded values and residual add up to the input") {
  Random random(12);
  for (const auto& codec : allCodecs()) {
    if (codec->memorySlots() > 1 && codec->spec().find("momentum=0") == std::string::npos) continue;
    if (codec->spec() == "dgc:fraction=0.01,momentum=0.9") continue;  // accumulates velocities
    for (const size_t count : {size_t{33}, size_t{1025}, size_t{70'000}}) {
      INFO(codec->spec() << ", " << count << " values");
      CodecTrainer trainer(*codec, count);
      std::vector<double> given(count), arrived(count);
      for (uint64_t step = 1; step <= 12; step++) {
        const std::vector<float> gradient = normalValues(count, random);
        const EncodedBytes bytes = trainer.encode(gradient, step);
        PSD_REQUIRE_OK(codec->check(bytes.span(), count));
        const std::vector<float> back = decoded(*codec, bytes, count);
        for (size_t i = 0; i < count; i++) {
          given[i] += gradient[i];
          arrived[i] += back[i];
        }
      }
      double worst = 0;
      for (size_t i = 0; i < count; i++) {
        const double kept = trainer.residual().empty() ? 0 : trainer.residual()[i];
        worst = std::max(worst, std::fabs(given[i] - arrived[i] - kept));
      }
      CHECK(worst < 1e-5);
    }
  }
}

TEST_CASE("a restored residual is sent again") {
  Random random(13);
  for (const auto& codec : allCodecs()) {
    if (codec->memorySlots() == 0) continue;
    INFO(codec->spec());
    const size_t count = 3000;
    CodecTrainer trainer(*codec, count);
    const std::vector<float> gradient = normalValues(count, random);
    const EncodedBytes lost = trainer.encode(gradient, 1);
    codec->restoreResidual(lost.span(), trainer.memory());
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
      worst = std::max(worst, std::fabs(static_cast<double>(gradient[i]) - trainer.residual()[i]));
    }
    CHECK(worst < 1e-5);
  }
}

TEST_CASE("parts decode like the whole") {
  Random random(14);
  for (const auto& codec : allCodecs()) {
    for (const size_t count : kCounts) {
      INFO(codec->spec() << ", " << count << " values");
      CodecTrainer trainer(*codec, count);
      const EncodedBytes bytes = trainer.encode(normalValues(count, random));
      const std::vector<float> whole = decoded(*codec, bytes, count);
      bool same = true;
      for (size_t begin = 0; begin < count;) {
        const size_t blocks = random.between(1, 5);
        std::vector<float> part(std::min<size_t>(blocks * kCodecBlock, count - begin), -1.f);
        codec->decode(bytes.span(), count, begin, part);
        same = same && std::equal(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(begin));
        begin += part.size();
      }
      CHECK(same);
    }
  }
}

TEST_CASE("entries are what a sparse codec decodes, and ascend") {
  Random random(15);
  for (const auto& codec : allCodecs()) {
    for (const size_t count : kCounts) {
      CodecTrainer trainer(*codec, count);
      const EncodedBytes bytes = trainer.encode(normalValues(count, random));
      const auto entries = codec->entryCount(bytes.span(), count);
      if (!entries) continue;
      INFO(codec->spec() << ", " << count << " values");
      std::vector<uint32_t> places(*entries);
      std::vector<float> values(*entries);
      for (size_t first = 0; first < *entries;) {
        const size_t some = std::min<size_t>(random.between(1, 1000), *entries - first);
        codec->entries(bytes.span(), count, first, std::span(places).subspan(first, some),
                       std::span(values).subspan(first, some));
        first += some;
      }
      CHECK(std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()) == places.end());
      std::vector<float> whole(count);
      for (size_t i = 0; i < places.size(); i++) whole.at(places[i]) = values[i];
      CHECK(whole == decoded(*codec, bytes, count));
    }
  }
}

TEST_CASE("a device's decoder matches decode()") {
  Random random(16);
  for (const auto& codec : allCodecs()) {
    for (const size_t count : kCounts) {
      const auto code = codec->denseCode(count);
      if (!code) continue;
      INFO(codec->spec() << ", " << count << " values");
      CodecTrainer trainer(*codec, count);
      const EncodedBytes bytes = trainer.encode(normalValues(count, random));
      const std::vector<float> whole = decoded(*codec, bytes, count);
      const auto* const raw = reinterpret_cast<const unsigned char*>(bytes.span().data());
      bool same = true;
      for (size_t i = 0; i < count; i++) same = same && denseValue(*code, raw, i) == whole[i];
      CHECK(same);
    }
  }
}

TEST_CASE("every truncation and extension is rejected") {
  Random random(17);
  for (const auto& codec : allCodecs()) {
    for (const size_t count : {size_t{1}, size_t{50}, size_t{1025}, size_t{66'000}}) {
      CodecTrainer trainer(*codec, count);
      const EncodedBytes bytes = trainer.encode(normalValues(count, random));
      std::vector<size_t> sizes = {0, 1, bytes.size() - 1, bytes.size() / 2};
      for (int i = 0; i < 40; i++) sizes.push_back(random.below(bytes.size()));
      if (bytes.size() < 400) {
        for (size_t size = 0; size < bytes.size(); size++) sizes.push_back(size);
      }
      for (const size_t size : sizes) {
        INFO(codec->spec() << ", " << count << " values, the first " << size << " of " << bytes.size()
                           << " bytes");
        CHECK_FALSE(codec->check(bytes.first(size).span(), count).ok());
      }
      EncodedBytes longer(bytes.size() + 8);
      std::memcpy(longer.data(), bytes.span().data(), bytes.size());
      CHECK_FALSE(codec->check(longer.span(), count).ok());
    }
  }
}

TEST_CASE("corrupted bytes are rejected, or decode to finite values") {
  Random random(18);
  for (const auto& codec : allCodecs()) {
    for (int round = 0; round < 600; round++) {
      const size_t count = kCounts[random.below(10)];
      CodecTrainer trainer(*codec, count);
      EncodedBytes bytes = trainer.encode(normalValues(count, random), random.below(1000));
      const size_t faults = random.between(1, 4);
      for (size_t i = 0; i < faults; i++) {
        // The header more often than the rest.
        const size_t at =
            random.oneIn(2) ? random.below(std::min<size_t>(bytes.size(), 24)) : random.below(bytes.size());
        bytes[at] = random.oneIn(2) ? bytes[at] ^ static_cast<std::byte>(1u << random.below(8))
                                    : static_cast<std::byte>(random.below(256));
      }
      INFO(codec->spec() << ", " << count << " values, round " << round);
      if (!codec->check(bytes.span(), count).ok()) continue;
      const std::vector<float> back = decoded(*codec, bytes, count);
      CHECK(std::all_of(back.begin(), back.end(), [](float value) { return std::isfinite(value); }));
      if (const auto entries = codec->entryCount(bytes.span(), count)) {
        std::vector<uint32_t> places(*entries);
        std::vector<float> values(*entries);
        codec->entries(bytes.span(), count, 0, places, values);
        CHECK(std::all_of(places.begin(), places.end(), [&](uint32_t place) { return place < count; }));
      }
    }
  }
}

TEST_CASE("a codec's spec parses to the same codec") {
  for (const auto& codec : allCodecs()) {
    CHECK(codecNamed(codec->spec())->spec() == codec->spec());
    CHECK(findDecoder(codec->name())->name() == codec->name());
  }
  CHECK(findDecoder("topk:fraction=0.5") == nullptr);
}

}  // namespace
}  // namespace psd::codec_contract_test
