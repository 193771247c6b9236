// Properties of single codecs: the bits of the format, rounding, selection, size.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/codec/row_codec.h"
#include "test/contract/codec_trainer.h"

namespace psd::codec_promises_test {
namespace {

using testing::codecNamed;
using testing::CodecTrainer;
using testing::decoded;
using testing::EncodedBytes;
using testing::normalValues;
using testing::Random;

EncodedBytes encoded(const Codec& codec, const std::vector<float>& values, uint64_t seed = 1) {
  EncodedBytes bytes(codec.encodedBytes(values.size()));
  PSD_REQUIRE_OK(codec.encode(values, seed, bytes.data()));
  return bytes;
}

/// The value of a finite half by IEEE 754's definition.
double halfValue(uint32_t half) {
  const double sign = half >> 15 ? -1 : 1;
  const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24)
                               : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25));
}

TEST_CASE("every half is read as IEEE 754 defines it, and written back unchanged") {
  for (uint32_t half = 0; half < 65'536; half++) {
    if ((half & 0x7c00) == 0x7c00) continue;
    const float value = fromHalf(static_cast<uint16_t>(half));
    REQUIRE(static_cast<double>(value) == halfValue(half));
    REQUIRE(std::signbit(value) == (half >> 15 != 0));
    REQUIRE(toHalf(value) == half);
  }
}

TEST_CASE("halves are rounded to the nearest, ties to even") {
  for (uint32_t half = 0; half < 0x7bff; half++) {
    const double here = halfValue(half), next = halfValue(half + 1);
    const auto middle = static_cast<float>((here + next) / 2);  // exact: it takes one bit more
    REQUIRE(toHalf(middle) == half + half % 2);
    REQUIRE(toHalf(std::nextafter(middle, 0.f)) == half);
    REQUIRE(toHalf(std::nextafter(middle, 1e9f)) == half + 1);
    REQUIRE(toHalf(-middle) == (0x8000 | (half + half % 2)));
  }
  CHECK(toHalf(65'519.996f) == 0x7bff);
  CHECK(toHalf(65'520.f) == 0x7c00);
  CHECK(toHalf(std::numeric_limits<float>::infinity()) == 0x7c00);
  CHECK(toHalf(1e-8f) == 0);
}

TEST_CASE("bfloat16 is rounded to the nearest, ties to even") {
  Random random(21);
  for (int i = 0; i < 100'000; i++) {
    const auto upper = static_cast<uint16_t>(random.below(0x7f7f));
    const auto lower = static_cast<uint32_t>(random.oneIn(4) ? 0x8000 : random.below(65'536));
    const float value = std::bit_cast<float>(uint32_t{upper} << 16 | lower);
    const uint32_t right = lower > 0x8000 || (lower == 0x8000 && upper % 2 == 1) ? upper + 1u : upper;
    REQUIRE(toBfloat16(value) == right);
    REQUIRE(toBfloat16(-value) == (right | 0x8000));
  }
}

TEST_CASE("values out of range of a 16-bit format are rejected on both sides") {
  for (const auto& [name, value] : {std::pair{"fp16", 65'520.f}, std::pair{"bf16", 3.4e38f}}) {
    const auto codec = codecNamed(name);
    const std::vector<float> values = {1, 2, value, 3};
    EncodedBytes bytes(codec->encodedBytes(4));
    const Status status = codec->encode(values, 1, bytes.data());
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::nonFinite);
    CHECK(codec->check(bytes.span(), 4).error().code == ErrorCode::nonFinite);
  }
}

TEST_CASE("int8 is exact on multiples of its scale, and errs by at most half a scale") {
  Random random(22);
  const auto codec = codecNamed("int8");
  std::vector<float> values(2500);
  for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(random.between(0, 254)) - 127;
  values[5] = values[1500] = values[2400] = 127;
  CHECK(decoded(*codec, encoded(*codec, values), values.size()) == values);
  values = normalValues(2500, random);
  const std::vector<float> back = decoded(*codec, encoded(*codec, values), values.size());
  for (size_t begin = 0; begin < values.size(); begin += kCodecBlock) {
    const size_t end = std::min<size_t>(begin + kCodecBlock, values.size());
    float most = 0;
    for (size_t i = begin; i < end; i++) most = std::max(most, std::fabs(values[i]));
    for (size_t i = begin; i < end; i++) REQUIRE(std::fabs(values[i] - back[i]) <= most / 127 * 0.501f);
  }
}

TEST_CASE("int8 rejects scales and values that no encoder produces") {
  const auto codec = codecNamed("int8");
  for (const float scale :
       {-1.f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e38f}) {
    EncodedBytes bytes = encoded(*codec, {1, 2, 3});
    std::memcpy(bytes.data(), &scale, sizeof scale);
    CHECK(codec->check(bytes.span(), 3).error().code == ErrorCode::nonFinite);
  }
  EncodedBytes bytes = encoded(*codec, {1, 2, 3});
  bytes[5] = std::byte{0x80};
  CHECK(codec->check(bytes.span(), 3).error().code == ErrorCode::badSlice);
}

TEST_CASE("values of four bits are the nearest representable, and scales are per block") {
  Random random(25);
  const std::vector<float> whole = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<float> powers = {0, 1.f / 64, 1.f / 32, 1.f / 16, 1.f / 8, 1.f / 4, 1.f / 2, 1};
  for (const auto& [name, numbers] : {std::pair{"int4", whole}, std::pair{"e3m0", powers}}) {
    const auto codec = codecNamed(name);
    for (const size_t count : {size_t{1}, size_t{2}, size_t{255}, size_t{256}, size_t{2501}}) {
      std::vector<float> values = normalValues(count, random);
      for (size_t i = 0; i < count; i++) values[i] *= i / 256 % 2 == 0 ? 1e-3f : 1e3f;
      const std::vector<float> back = decoded(*codec, encoded(*codec, values), count);
      for (size_t begin = 0; begin < count; begin += 256) {
        const auto block = std::span(values).subspan(begin, std::min<size_t>(256, count - begin));
        float largest = 0;
        for (const float value : block) largest = std::max(largest, std::fabs(value));
        const float scale = largest / numbers.back();
        for (size_t i = 0; i < block.size(); i++) {
          float nearest = largest;
          for (const float number : numbers) {
            nearest = std::min(nearest, std::fabs(std::fabs(block[i]) - number * scale));
          }
          REQUIRE(std::fabs(block[i] - back[begin + i]) <= nearest + largest * 1e-6f);
        }
      }
    }
  }
}

TEST_CASE("four-bit codecs reject scales and values that no encoder produces") {
  for (const char* name : {"int4", "e3m0"}) {
    const auto codec = codecNamed(name);
    const auto with = [&](size_t at, std::byte value) {
      EncodedBytes bytes = encoded(*codec, {1, -2, 3});  // a scale and two bytes
      REQUIRE(bytes.size() == 6);
      bytes[at] = value;
      return codec->check(bytes.span(), 3);
    };
    CHECK(with(5, std::byte{7}).ok());
    CHECK(with(3, std::byte{0xff}).error().code == ErrorCode::nonFinite);  // NaN or negative
    CHECK(with(4, std::byte{0x18}).error().code == ErrorCode::badSlice);
    CHECK(with(4, std::byte{0x81}).error().code == ErrorCode::badSlice);
    CHECK(with(5, std::byte{0x17}).error().code == ErrorCode::badSlice);  // a fourth value
  }
}

TEST_CASE("topk sends exactly the largest magnitudes, of equal ones the first") {
  Random random(23);
  for (const size_t count : {size_t{10}, size_t{1000}, size_t{70'001}}) {
    for (const char* spec : {"topk:fraction=0.01", "topk:fraction=0.25", "topk:fraction=0.9"}) {
      for (const bool coarse : {false, true}) {
        std::vector<float> values = normalValues(count, random);
        if (coarse) {
          for (float& value : values) value = std::round(value * 2) / 2;  // many are equal
        }
        const auto codec = codecNamed(spec);
        const EncodedBytes bytes = encoded(*codec, values);
        std::vector<uint32_t> order(count);
        std::iota(order.begin(), order.end(), 0u);
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
        order.resize(*codec->entryCount(bytes.span(), count));
        std::vector<float> right(count);
        for (const uint32_t i : order) right[i] = values[i];
        INFO(spec << ", " << count << " values");
        CHECK(decoded(*codec, bytes, count) == right);
      }
    }
  }
}

TEST_CASE("topk rejects positions that do not ascend or are out of range") {
  const auto codec = codecNamed("topk:fraction=0.5");
  const EncodedBytes good = encoded(*codec, {4, 3, 2, 1});  // k, group, 2 values, 2 positions
  const auto with = [&](size_t at, std::byte value) {
    EncodedBytes bytes = good.first(good.size());
    bytes[at] = value;
    return codec->check(bytes.span(), 4);
  };
  CHECK(good.size() == 20);
  CHECK_FALSE(with(18, std::byte{0}).ok());    // position 0 twice
  CHECK_FALSE(with(18, std::byte{4}).ok());    // position 4 of 4
  CHECK_FALSE(with(4, std::byte{1}).ok());     // a group of 1
  CHECK_FALSE(with(4, std::byte{3}).ok());     // a group of 3
  CHECK_FALSE(with(3, std::byte{0xff}).ok());  // 4 billion values
  CHECK(with(18, std::byte{3}).ok());
}

TEST_CASE("onebit sends the signs and the mean of each sign in a block") {
  const auto codec = codecNamed("onebit");
  std::vector<float> values(kCodecBlock + 3, 1.f);
  for (size_t i = 0; i < kCodecBlock; i += 4) values[i] = -3;
  values[1] = 2;  // the mean of 768 values becomes 1 + 1/768
  values[kCodecBlock] = -1, values[kCodecBlock + 1] = -2, values[kCodecBlock + 2] = 0;
  const std::vector<float> back = decoded(*codec, encoded(*codec, values), values.size());
  for (size_t i = 0; i < kCodecBlock; i++)
    REQUIRE(back[i] == (i % 4 == 0 ? -3.f : static_cast<float>(769. / 768)));
  CHECK(back[kCodecBlock] == -1.5f);
  CHECK(back[kCodecBlock + 1] == -1.5f);
  CHECK(back[kCodecBlock + 2] == 0.f);
}

TEST_CASE("randk draws every position equally often, others with another seed") {
  const auto codec = codecNamed("randk:fraction=0.1");
  const size_t count = 200;
  const std::vector<float> values(count, 1.f);
  std::vector<int> drawn(count);
  const int rounds = 20'000;
  for (int seed = 0; seed < rounds; seed++) {
    const std::vector<float> back =
        decoded(*codec, encoded(*codec, values, static_cast<uint64_t>(seed)), count);
    for (size_t i = 0; i < count; i++) drawn[i] += back[i] == 1.f ? 1 : 0;
  }
  for (const int times : drawn) {
    CHECK(times > rounds / 10 - 300);  // 7 standard deviations
    CHECK(times < rounds / 10 + 300);
  }
  CHECK(decoded(*codec, encoded(*codec, values, 1), count) ==
        decoded(*codec, encoded(*codec, values, 1), count));
}

TEST_CASE("dgc follows Lin et al.: momentum correction, accumulation, masking") {
  Random random(24);
  const size_t count = 1000;
  const auto codec = codecNamed("dgc:fraction=0.05,momentum=0.9");
  CodecTrainer trainer(*codec, count);
  std::vector<float> u(count), v(count);
  for (uint64_t step = 1; step <= 20; step++) {
    const std::vector<float> gradient = normalValues(count, random);
    const std::vector<float> back = decoded(*codec, trainer.encode(gradient, step), count);
    std::vector<float> magnitudes(count);
    for (size_t i = 0; i < count; i++) {
      u[i] = 0.9f * u[i] + gradient[i];
      v[i] += u[i];
      magnitudes[i] = std::fabs(v[i]);
    }
    std::nth_element(magnitudes.begin(), magnitudes.begin() + 49, magnitudes.end(), std::greater<>());
    for (size_t i = 0; i < count; i++) {
      const bool sent = std::fabs(v[i]) >= magnitudes[49];
      REQUIRE(back[i] == (sent ? v[i] : 0.f));
      if (sent) u[i] = v[i] = 0;
    }
    REQUIRE(trainer.residual() == v);
    REQUIRE(trainer.velocity() == u);
  }
}

TEST_CASE("codecs have the sizes in docs/reference/codecs.md") {
  const uint64_t slice = 1 << 18;  // 1 MiB of floats
  const auto ratio = [&](const char* spec) {
    return static_cast<double>(slice * sizeof(float)) /
           static_cast<double>(codecNamed(spec)->encodedBytes(slice));
  };
  CHECK(ratio("none") == 1);
  CHECK(ratio("fp16") == 2);
  CHECK(ratio("bf16") == 2);
  CHECK(ratio("int8") > 3.98);
  CHECK(ratio("int4") > 7.75);
  CHECK(ratio("e3m0") > 7.75);
  CHECK(ratio("topk:fraction=0.01") > 66);
  CHECK(ratio("dgc:fraction=0.001") > 650);
  CHECK(ratio("randk:fraction=0.01") > 99);
  CHECK(ratio("onebit") > 30);
}

TEST_CASE("rows are decoded with the precision of their own largest value, whatever their neighbours are") {
  // A block of 1024 values would share one scale: here neighbours are 10^6 times as large.
  const RowBlock blocks[] = {{40, 5}, {3, 1100}, {0, 7}, {20, 16}, {1, 1}};
  Random random(3);
  std::vector<float> values;
  std::vector<std::pair<size_t, float>> bounds;  // of each value: its row's end, its maximum error
  for (const RowBlock& block : blocks) {
    for (uint64_t row = 0; row < block.rows; row++) {
      const float scale = row % 2 == 0 ? 1e3f : 1e-3f;
      for (const float value : normalValues(block.dim, random)) values.push_back(scale * value);
      bounds.emplace_back(values.size(), 6 * scale / 200);
    }
  }
  for (const char* const name : {"none", "fp16", "bf16", "int8"}) {
    INFO(name);
    const auto codec = codecNamed(name);
    const uint64_t bytes = encodedRowBytes(*codec, blocks);
    std::vector<uint64_t> memory(bytes / 8 + 2);
    auto* const out = reinterpret_cast<std::byte*>(memory.data());
    PSD_REQUIRE_OK(encodeRows(*codec, blocks, values, out));
    const std::span<const std::byte> code(out, bytes);
    PSD_REQUIRE_OK(checkRowBytes(*codec, blocks, code));
    std::vector<float> decoded(values.size());
    decodeRows(*codec, blocks, code, decoded);
    size_t at = 0;
    for (const auto& [end, bound] : bounds) {
      for (; at < end; at++) CHECK(std::abs(decoded[at] - values[at]) <= bound);
    }
    CHECK_FALSE(checkRowBytes(*codec, blocks, code.first(bytes - 1)).ok());
    CHECK_FALSE(checkRowBytes(*codec, blocks, {out, bytes + 4}).ok());
  }
  const RowBlock rows[] = {{100, 32}};
  CHECK(encodedRowBytes(*codecNamed("int8"), rows) == 100 * 36);
  CHECK(encodedRowBytes(*codecNamed("bf16"), rows) == 100 * 64);
}

TEST_CASE("a row with a scale that is not a number is rejected, at any position") {
  const RowBlock blocks[] = {{3, 5}};
  const std::vector<float> values(15, 1.f);
  const auto codec = codecNamed("int8");
  std::vector<uint64_t> memory(encodedRowBytes(*codec, blocks) / 8 + 1);
  auto* const out = reinterpret_cast<std::byte*>(memory.data());
  PSD_REQUIRE_OK(encodeRows(*codec, blocks, values, out));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(out + 2 * 12, &nan, sizeof nan);  // a row takes 4 + 5 bytes, and 3 to the next multiple of 4
  const Status status = checkRowBytes(*codec, blocks, {out, 36});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::nonFinite);
}

TEST_CASE("an unknown codec, or option, is rejected with the known ones") {
  const auto problem = [](const char* spec) { return makeCodec(spec).status().message(); };
  CHECK(problem("topq") == "'topq' is not a codec; did you mean 'topk'?");
  CHECK(problem("zip") ==
        "'zip' is not a codec; expected none, fp16, bf16, int8, int4, e3m0, topk, randk, onebit, dgc");
  CHECK(problem("topk:fraction=0") == "codec 'topk': fraction must be a number from 1e-06 to 1, not '0'");
  CHECK(problem("topk:fraction=nan") == "codec 'topk': fraction must be a number from 1e-06 to 1, not 'nan'");
  CHECK(problem("topk:k=3") == "codec 'topk': 'k' is not an option; expected fraction");
  CHECK(problem("topk:0.1") == "codec 'topk': '0.1' is not an option; expected NAME=VALUE");
  CHECK(problem("dgc:momentum=1") == "codec 'dgc': momentum must be a number from 0 to 0.9999, not '1'");
  CHECK(problem("dgc:fraction=0.1,fraction=0.2") == "codec 'dgc': fraction is given twice");
  CHECK(problem("fp16:x=1") == "codec 'fp16': 'x' is not an option; there are none");
  CHECK(codecNamed("dgc:momentum=0.5")->spec() == "dgc:fraction=0.01,momentum=0.5");
}

}  // namespace
}  // namespace psd::codec_promises_test
