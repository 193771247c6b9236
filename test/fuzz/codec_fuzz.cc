// A gradient's bytes, as every codec checks and decodes them.

#include <cmath>
#include <cstring>

#include "common/codec/bytes.h"
#include "common/codec/codec.h"
#include "test/fuzz/fuzz_list.h"

namespace psd::fuzz {
namespace {
namespace codec_fuzz {

constexpr uint64_t kCountMax = 1 << 16;  // a larger gradient is only slower

/// Input: the codec (1 byte), the number of values (3 bytes), the code.
void run(Bytes input) {
  if (input.size() < 4) return;
  const auto names = codecNames();
  const Codec& codec = *findDecoder(names[static_cast<uint8_t>(input[0]) % names.size()]);
  uint32_t head = 0;
  std::memcpy(&head, input.data(), sizeof head);
  const uint64_t count = (head >> 8) % kCountMax + 1;
  const Bytes given = input.subspan(4);
  std::vector<uint64_t> words((given.size() + 7) / 8);  // 8-byte aligned, as codes are
  if (!given.empty()) std::memcpy(words.data(), given.data(), given.size());
  const Codec::Bytes code = std::as_bytes(std::span(words)).first(given.size());
  if (!codec.check(code, count).ok()) return;

  std::vector<float> values(count);
  codec.decode(code, count, 0, values);
  for (float value : values) require(std::isfinite(value), "values accepted by check() are finite");
  // In blocks, like storages.
  std::vector<float> block(kCodecBlock);
  for (uint64_t begin = 0; begin < count; begin += kCodecBlock) {
    const auto some = std::span(block).first(std::min<uint64_t>(kCodecBlock, count - begin));
    codec.decode(code, count, begin, some);
    require(std::memcmp(some.data(), values.data() + begin, some.size_bytes()) == 0,
            "a block decodes like the whole");
  }
  const auto entries = codec.entryCount(code, count);
  if (!entries) return;
  require(*entries <= count, "there are no more entries than values");
  std::vector<uint32_t> places(*entries);
  std::vector<float> kept(*entries);
  codec.entries(code, count, 0, places, kept);
  for (size_t i = 0; i < places.size(); i++) {
    require(places[i] < count, "an entry is within the values");
    require(i == 0 || places[i - 1] < places[i], "entries ascend");
    require(values[places[i]] == kept[i], "entries equal the decoded values");
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds;
  const auto names = codecNames();
  for (size_t index = 0; index < names.size(); index++) {
    for (uint32_t count : {1u, 40u, 700u}) {
      const auto codec = makeCodec(names[index]);
      std::vector<float> values(count);
      for (size_t i = 0; i < count; i++) values[i] = std::sin(static_cast<float>(i + 1));
      std::vector<uint64_t> code(((*codec)->encodedBytes(count) + 7) / 8);
      auto* const bytes = reinterpret_cast<std::byte*>(code.data());
      require((*codec)->encode(values, 7, bytes).ok(), "small values can be encoded");
      const uint32_t head = static_cast<uint32_t>(index) | (count - 1) << 8;
      std::string seed(reinterpret_cast<const char*>(&head), sizeof head);
      seed.append(reinterpret_cast<const char*>(bytes), (*codec)->encodedBytes(count));
      seeds.push_back(std::move(seed));
    }
  }
  return seeds;
}

}  // namespace codec_fuzz
}  // namespace

const FuzzTarget kCodecTarget{"codec", "a gradient's bytes in every codec", codec_fuzz::run,
                              codec_fuzz::seeds};

}  // namespace psd::fuzz
