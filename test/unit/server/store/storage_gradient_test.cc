// Encoded gradients: a storage takes them like the values that they decode to.

#include <vector>

#include "server/optimizer/optimizer_config.h"
#include "test/contract/codec_trainer.h"
#include "test/support/storage_calls.h"

namespace psd::storage_gradient_test {
namespace {

using testing::codecNamed;
using testing::CodecTrainer;
using testing::copyOf;
using testing::decoded;
using testing::EncodedBytes;
using testing::normalValues;
using testing::Random;
using testing::StorageCalls;

Optimizer parse(const std::string& json) {
  ObjectReader reader(nlohmann::ordered_json::parse(json));
  Optimizer optimizer = readOptimizer(reader);
  PSD_REQUIRE_OK(reader.finish());
  return optimizer;
}

TEST_CASE("an encoded gradient changes weights and slots like the decoded one") {
  constexpr uint64_t kOffset = 32, kCount = 9'000, kElements = 9'100;
  Random random(31);
  for (const char* options :
       {R"({"type": "sgd"})", R"({"type": "sgd", "weight_decay": 0.01})",
        R"({"type": "sgd", "momentum": 0.9})", R"({"type": "adam"})", R"({"type": "adagrad"})"}) {
    for (const std::string_view name : codecNames()) {
      INFO(options << ", " << name);
      const Optimizer optimizer = parse(options);
      const auto codec = codecNamed(name);
      const auto backend = makeCpuBackend();
      auto shards = backend->allocate(std::vector<uint64_t>{kElements, kElements}, optimizer);
      PSD_REQUIRE_OK(shards);
      StorageCalls encoded(*backend, *shards->front()), plain(*backend, *shards->back());
      const std::vector<float> start = normalValues(kElements, random);
      PSD_REQUIRE_OK(encoded.write(0, start));
      PSD_REQUIRE_OK(plain.write(0, start));
      CodecTrainer trainer(*codec, kCount);
      for (uint64_t number = 1; number <= 4; number++) {
        const EncodedBytes bytes = trainer.encode(normalValues(kCount, random), number);
        const UpdateScalars update{number, optimizer.learningRate(number)};
        PSD_REQUIRE_OK(encoded.apply(kOffset, Gradient(*codec, bytes.span(), kCount), update));
        PSD_REQUIRE_OK(plain.apply(kOffset, decoded(*codec, bytes, kCount), update));
      }
      const auto same = [&](const Result<ReadView>& a, const Result<ReadView>& b) {
        PSD_REQUIRE_OK(a);
        PSD_REQUIRE_OK(b);
        return copyOf(*a) == copyOf(*b);
      };
      CHECK(same(encoded.snapshot(0, kElements), plain.snapshot(0, kElements)));
      for (uint32_t slot = 0; slot < optimizer.slotCount(); slot++) {
        CHECK(same(encoded.readSlot(slot, 0, kElements), plain.readSlot(slot, 0, kElements)));
      }
    }
  }
}

TEST_CASE("only plain gradient descent keeps weights unchanged where a gradient is zero") {
  CHECK(parse(R"({"type": "sgd"})").zerosChangeNothing());
  CHECK_FALSE(parse(R"({"type": "sgd", "weight_decay": 0.1})").zerosChangeNothing());
  CHECK_FALSE(parse(R"({"type": "sgd", "momentum": 0.1})").zerosChangeNothing());
  CHECK_FALSE(parse(R"({"type": "adam"})").zerosChangeNothing());
}

}  // namespace
}  // namespace psd::storage_gradient_test
