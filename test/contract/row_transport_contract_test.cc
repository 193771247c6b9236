// The contract of every RowTransport, with a daemon in its own process. A new one is a line of kWays.

#include <algorithm>
#include <csignal>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "test/contract/transport_rig.h"
#include "test/support/random.h"
#include "test/support/row_ids.h"
#include "trainer/client/transport/slice_queue.h"

namespace psd::row_transport_contract_test {
namespace {

using namespace testing;

constexpr uint64_t kSliceValues = 1024;  // maximum per slice
constexpr uint32_t kRowShards = 2, kWindow = TransportRig::kWindow;
constexpr uint64_t kIds = 2'000;  // per batch
const ModelSpec kModel{
    "rows", {}, {{"item", 16, {RowInitial::Kind::zero, 0, 1}}, {"user", 3, {RowInitial::Kind::zero, 0, 1}}}};

/// A transport's setup for rows.
struct TransportCase {
  const char* name;
  const char* transport;
  Transport wanted = Transport::rpc;
  bool codec = false;
  bool inRing = false;                ///< the batch is in the ring
  uint32_t batchShards = kRowShards;  ///< if they differ from the daemon's, rows of a slice are scattered
};

constexpr TransportCase kWays[] = {
    {"messages", "rpc"},
    {"messages of scattered rows", "rpc", Transport::rpc, false, false, 1},
    {"codec", "rpc", Transport::rpc, true},
    {"ring, the batch in it", "shm", Transport::shm, false, true},
    {"ring, the batch on the heap", "shm", Transport::shm},
    {"ring, scattered rows in it", "shm", Transport::shm, false, true, 1},
};

/// A single trainer with a daemon whose updates subtract the gradient from rows that are initialized to
/// zeros. Owned by one thread.
struct Rig : TransportRig {
  explicit Rig(const TransportCase& way) : way(way) {
    std::vector<std::string> settings = {
        "row_shards=" + std::to_string(kRowShards), R"(optimizer={"type":"sgd","lr":1})",
        R"(limits={"slice_bytes":)" + std::to_string(kSliceValues * sizeof(float)) + "}"};
    // Half precision represents all integers that are drawn here.
    if (way.codec) settings.push_back(R"(codecs={"push":{"default":"fp16"},"pull":{"default":"fp16"}})");
    join(settings, kModel, way.wanted);
    initialized();
    transports->useRowCodecs(terms.codec, terms.pullCodec);
    if (way.inRing) memory->use(transports->rowBlocks());
  }

  RowBatch batch(uint64_t seed) const {
    Random random(seed);
    const std::vector<uint64_t> items = mixedIds(kIds, random), users = mixedIds(kIds, random);
    RowBatch batch(kModel.tables, way.batchShards, memory);
    const RowBatch::Feature features[] = {{0, items}, {1, users}};
    batch.make(features);
    return batch;
  }
  std::vector<RowSlice> slicesOf(const RowBatch& batch) const {
    return cutRows(batch, terms.rowShards, terms.rowValuesMax);
  }
  static PushRequest request(uint64_t step, const RowBatch& batch) {
    return {.step = Step{step}, .samples = 1, .parts = kRowShards, .rows = {std::shared_ptr<void>(), &batch}};
  }
  RowTransport& rows() { return transports->rows(); }
  Status pushAll(uint64_t step, const RowBatch& batch) {
    const PushRequest all = request(step, batch);
    const std::vector<RowSlice> slices = slicesOf(batch);
    return wait(sendInWindow(slices.size(), kWindow, [&](size_t index) {
      return rows().push(all, slices[index]).then([](const SlicePushed& pushed) { return pushed.status; });
    }));
  }
  Status pullAll(uint64_t number, RowBatch& batch) {
    const std::vector<RowSlice> slices = slicesOf(batch);
    return wait(sendInWindow(slices.size(), kWindow, [&](size_t index) {
      return rows().pull(number, slices[index], batch).then([](const Result<SlicePulled>& pulled) {
        return pulled.status();
      });
    }));
  }

  const TransportCase& way;
  std::shared_ptr<RowMemory> memory = std::make_shared<RowMemory>();
};

/// Runs `test` with each way, each on its own daemon.
void onEach(const std::function<void(Rig&)>& test) {
  for (const TransportCase& way : kWays) {
    INFO(way.name);
    Rig rig(way);
    test(rig);
  }
}

void fillGradients(RowBatch& batch, Random& random) {
  for (uint32_t table : {0u, 1u}) {
    for (float& value : batch.gradients(table)) value = static_cast<float>(random.between(1, 2000)) - 1000.f;
  }
}

void fillRows(RowBatch& batch, float value) {
  for (uint32_t table : {0u, 1u}) std::ranges::fill(batch.rows(table), value);
}

bool areAll(const RowBatch& batch, float value) {
  for (uint32_t table : {0u, 1u}) {
    const auto rows = batch.rows(table);
    if (std::ranges::count(rows, value) != std::ssize(rows)) return false;
  }
  return true;
}

/// Whether each row is the negative of its gradient.
bool areUpdated(const RowBatch& batch) {
  for (uint32_t table : {0u, 1u}) {
    if (!std::ranges::equal(batch.rows(table), batch.gradients(table), {}, {}, std::negate())) return false;
  }
  return true;
}

void checkRefused(const Status& status, ErrorCode code) {
  REQUIRE_FALSE(status.ok());
  INFO(status.message());
  CHECK(errorCodeName(status.error().code) == errorCodeName(code));
  CHECK(status.message().find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("Row transport contract: the bits are equal both ways, slice by slice, in any order") {
  onEach([](Rig& rig) {
    CHECK(std::string(rig.rows().name()) == rig.way.transport);
    Random random(7);
    RowBatch batch = rig.batch(1);
    fillGradients(batch, random);
    std::vector<RowSlice> slices = rig.slicesOf(batch);
    REQUIRE(slices.size() > 4 * kWindow);
    std::ranges::shuffle(slices, random.engine());
    const PushRequest request = Rig::request(1, batch);
    for (const RowSlice& slice : slices) {
      const SlicePushed answer = rig.wait(rig.rows().push(request, slice));
      PSD_REQUIRE_OK(answer.status);
      CHECK(answer.bytes == slice.values * (rig.way.codec ? 2 : sizeof(float)));
    }
    std::ranges::shuffle(slices, random.engine());
    uint64_t known = 0;
    for (const RowSlice& slice : slices) {
      const auto answer = rig.wait(rig.rows().pull(1, slice, batch));
      PSD_REQUIRE_OK(answer);
      CHECK(answer->version == Version{1});
      CHECK(answer->bytes == slice.values * (rig.way.codec ? 2 : sizeof(float)));
      known += answer->known;
    }
    CHECK(known == batch.rowCount());
    CHECK(areUpdated(batch));
  });
}

TEST_CASE("Row transport contract: nothing is written outside the slice") {
  onEach([](Rig& rig) {
    RowBatch batch = rig.batch(1);
    fillRows(batch, 0.5f);
    const RowSlice slice = rig.slicesOf(batch)[3];
    PSD_REQUIRE_OK(rig.wait(rig.rows().pull(1, slice, batch)));
    uint64_t zeros = 0, others = 0;
    for (uint32_t table : {0u, 1u}) {
      zeros += static_cast<uint64_t>(std::ranges::count(batch.rows(table), 0.f));
      others += static_cast<uint64_t>(std::ranges::count(batch.rows(table), 0.5f));
    }
    CHECK(zeros == slice.values);
    CHECK(others == batch.rows(0).size() + batch.rows(1).size() - slice.values);
  });
}

TEST_CASE("Row transport contract: more slices than its window are requested at once, and all complete") {
  onEach([](Rig& rig) {
    Random random(8);
    RowBatch batch = rig.batch(2), second = rig.batch(2);
    fillGradients(batch, random);
    PSD_REQUIRE_OK(rig.pushAll(1, batch));
    std::vector<kj::Promise<Result<SlicePulled>>> asked;
    for (const RowSlice& slice : rig.slicesOf(batch)) {
      asked.push_back(rig.rows().pull(1, slice, batch));
      asked.push_back(rig.rows().pull(2, slice, second));
    }
    for (auto& answer : asked) PSD_REQUIRE_OK(rig.wait(kj::mv(answer)));
    CHECK(areUpdated(batch));
    for (uint32_t table : {0u, 1u}) CHECK(std::ranges::equal(batch.rows(table), second.rows(table)));
  });
}

TEST_CASE("Row transport contract: a part without rows is sent like the others") {
  onEach([](Rig& rig) {
    RowBatch batch = rig.batch(1);
    batch.make({});
    for (const uint64_t step : {1, 2}) PSD_REQUIRE_OK(rig.pushAll(step, batch));
    const PushRequest none{.step = Step{3}, .samples = 1, .parts = kRowShards};
    for (const RowSlice& slice : noRows(rig.terms.rowShards)) {
      const SlicePushed answer = rig.wait(rig.rows().push(none, slice));
      PSD_REQUIRE_OK(answer.status);
      CHECK(answer.version == Version{3});
    }
  });
}

TEST_CASE("Row transport contract: a rejected slice is a typed error, and the next one works") {
  onEach([](Rig& rig) {
    Random random(9);
    RowBatch batch = rig.batch(3);
    fillGradients(batch, random);
    fillRows(batch, 0.5f);
    const PushRequest first = Rig::request(1, batch);
    const std::vector<RowSlice> slices = rig.slicesOf(batch);
    RowSlice elsewhere = slices[0];
    elsewhere.shard = ShardId{elsewhere.shard.value == 0 ? 1u : 0u};
    for (uint32_t i = 0; i < 3 * kWindow; i++) {
      checkRefused(rig.wait(rig.rows().push(first, elsewhere)).status, ErrorCode::badSlice);
      checkRefused(rig.wait(rig.rows().pull(1, elsewhere, batch)).status(), ErrorCode::badSlice);
    }
    CHECK(areAll(batch, 0.5f));
    const RowSlice::Piece& piece = slices[0].pieces[0];
    float& value = batch.gradients(piece.table)[piece.begin * batch.dim(piece.table)];
    const float right = std::exchange(value, std::numeric_limits<float>::quiet_NaN());
    checkRefused(rig.wait(rig.rows().push(first, slices[0])).status, ErrorCode::nonFinite);
    value = right;
    PSD_REQUIRE_OK(rig.pushAll(2, batch));
    PSD_REQUIRE_OK(rig.pullAll(2, batch));
    CHECK(areUpdated(batch));
  });
}

TEST_CASE(
    "Row transport contract: when the connection breaks, every slice fails, and its batch stays usable") {
  onEach([](Rig& rig) {
    const Error gone{ErrorCode::unavailable, "gone"};
    RowBatch batch = rig.batch(4);
    const PushRequest request = Rig::request(1, batch);
    const std::vector<RowSlice> slices = rig.slicesOf(batch);
    rig.daemon.signal(SIGSTOP);
    std::vector<kj::Promise<Status>> asked;
    for (uint32_t i = 0; i < kWindow; i++) {
      asked.push_back(rig.connection->call([&] {
        return rig.rows().push(request, slices[i]).then([](const SlicePushed& pushed) {
          return pushed.status;
        });
      }));
      asked.push_back(rig.connection->call([&] {
        return rig.rows().pull(1, slices[i], batch).then([](const Result<SlicePulled>& got) {
          return got.status();
        });
      }));
    }
    for (auto& answer : asked) REQUIRE_FALSE(answer.poll(rig.io.waitScope));
    rig.end(gone);
    for (auto& answer : asked) {
      const Status ended = rig.wait(kj::mv(answer));
      checkRefused(ended, ErrorCode::unavailable);
      CHECK(ended.message() == gone.message);
    }
    batch.dropLostMemory();
    fillRows(batch, 0.5f);
    rig.daemon.signal(SIGCONT);
    // That of the status call is the only one.
    rig.daemon.statusWhen([](const auto& now) { return now["gauges"]["connections_open"] == 1; });
    rig.io.provider->getTimer().afterDelay(0 * kj::SECONDS).wait(rig.io.waitScope);
    CHECK(areAll(batch, 0.5f));
    // What is created from here on is in memory that no daemon writes.
    const std::vector<uint64_t> ids = {1, 2, 3};
    const RowBatch::Feature features[] = {{0, ids}};
    batch.make(features);
    CHECK(std::ranges::count(batch.gradients(0), 0.f) == 48);
  });
}

}  // namespace psd::row_transport_contract_test
