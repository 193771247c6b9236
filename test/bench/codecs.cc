// psd-bench-codecs: the time of every codec for one slice of 1 MiB of float32, on one thread. Prints one JSON
// object per line. Encoding is that of a trainer with error feedback; decoding is that of the daemon before
// the optimizer.

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include <nlohmann/json.hpp>

#include "common/codec/codec.h"
#include "test/bench/measure.h"

namespace psd::bench {
namespace {

constexpr uint64_t kCount = 1u << 18;
constexpr uint64_t kBlock = 4096;  // as in the daemon's apply loop

std::vector<float> gradient() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 1e-3f);
  std::vector<float> values(kCount);
  for (float& value : values) value = normal(random);
  return values;
}

void run(std::string_view name, double seconds) {
  const auto codec = *makeCodec(name);
  const std::vector<float> values = gradient();
  std::vector<float> residual(kCount), velocity(kCount), block(kBlock);
  const CodecMemory memory{residual, velocity};
  const uint64_t bytes = codec->encodedBytes(kCount);
  std::vector<uint64_t> buffer(bytes / sizeof(uint64_t) + 1);
  auto* const out = reinterpret_cast<std::byte*>(buffer.data());
  bool failed = false;
  const Timing encoding = measure(seconds, [&] {
    if (codec->memorySlots() == 0) {
      failed |= !codec->encode(values, 1, out).ok();
      return;
    }
    codec->accumulate(values, memory);
    failed |= !codec->encode(residual, 1, out).ok();
    codec->settle({out, bytes}, memory);
  });
  const Timing decoding = measure(seconds, [&] {
    failed |= !codec->check({out, bytes}, kCount).ok();
    for (uint64_t begin = 0; begin < kCount; begin += kBlock)
      codec->decode({out, bytes}, kCount, begin, block);
  });
  const double valueBytes = kCount * sizeof(float);
  const nlohmann::ordered_json line = {{"codec", codec->spec()},
                                       {"bytes", bytes},
                                       {"compression", valueBytes / static_cast<double>(bytes)},
                                       {"iterations", encoding.iterations + decoding.iterations},
                                       {"encode_bytes_per_s", valueBytes / encoding.median},
                                       {"encode_best_bytes_per_s", valueBytes / encoding.best},
                                       {"decode_bytes_per_s", valueBytes / decoding.median},
                                       {"decode_best_bytes_per_s", valueBytes / decoding.best}};
  std::printf("%s\n", line.dump().c_str());
  if (failed) std::exit(1);
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  for (const std::string_view name : psd::codecNames()) psd::bench::run(name, seconds);
}
