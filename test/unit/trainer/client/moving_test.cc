#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/unit/trainer/client/fake_client.h"
#include "trainer/client/moving_client.h"

namespace psd::client_moving_test {
namespace {

using namespace testing;

const ModelSpec kModel{"m", {{"w", DType::f32, {16}}}, {{"ids", 2, {}}}};

/// The daemons of a move. Shared by the clients of one thread.
struct Daemons {
  FakeDaemon daemon;
  uint32_t count = 1;
  uint32_t shards = 1;
  bool asks = false;
  Result<DaemonAddresses> answer = DaemonAddresses();
  int asides = 0, openAtAside = 0;
  std::vector<Version> basis;  // of the newest push
  MovedFrom from;
  DaemonAddresses movedTo;                             // what an observer receives
  std::vector<std::chrono::milliseconds> askedWithin;  // for how long
  std::optional<Error> pullFails;
  int endedJoins = 0;                         // joins still to come whose wait is ended
  int observed = 0, refusals = 0;             // by observers; the number still to come
  bool takesDevice = true, onDevice = false;  // the memory of a CUDA device
  std::vector<std::string> log;
};

class FakeMovable final : public MovableClient, private Rounds, private SampleSource {
 public:
  explicit FakeMovable(Daemons& daemons) : daemons_(daemons), client_(daemons.daemon) {}

  bool pendingMove() const override { return daemons_.asks; }
  DaemonAddresses movedTo(std::chrono::milliseconds within) const override {
    daemons_.askedWithin.push_back(within);
    return daemons_.movedTo;
  }
  Result<DaemonAddresses> quiesce() override {
    daemons_.asks = false;
    daemons_.asides++;
    daemons_.openAtAside = daemons_.daemon.openPulls + daemons_.daemon.openPushes;
    return daemons_.answer;
  }
  MovedFrom movedFrom() const override { return {7, 8, {{Step{3}, HeldSamples{Step{3}, {0, 4, 2}}}}}; }
  void setMovedFrom(const MovedFrom& before) override { daemons_.from = before; }
  bool useDeviceMemory() override { return daemons_.onDevice = daemons_.takesDevice; }
  bool stayOnDevice() override { return daemons_.onDevice = daemons_.takesDevice; }

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<ConstArenaValues()>& initialValues) override {
    if (daemons_.endedJoins > 0) {
      daemons_.endedJoins--;
      return waitEndedError();
    }
    auto info = client_.join(membership, model, initialValues);
    if (!info.ok()) return info;
    info->rank = membership.rank;
    info->worldSize = membership.worldSize;
    info->shardCount = daemons_.shards;
    daemons_.log.push_back("joined as " + std::to_string(membership.rank.value));
    return info;
  }
  Result<JoinInfo> observe(const ModelSpec& model) override {
    if (daemons_.refusals > 0) {
      daemons_.refusals--;
      return Error{ErrorCode::unavailable, "not known to have left"};
    }
    daemons_.observed++;
    return client_.observe(model);
  }
  std::span<const float> view() const override { return daemons_.daemon.values; }
  RowBatch makeRowBatch() const override {
    return RowBatch(daemons_.daemon.tables, 1, nullptr, daemons_.count);
  }
  Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows) override {
    REQUIRE((rows == nullptr || rows->daemons() == daemons_.count));
    if (daemons_.pullFails) return ready<PullInfo>(*daemons_.pullFails);
    return client_.pull(destination, rows);
  }
  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows) override {
    REQUIRE((rows == nullptr || rows->daemons() == daemons_.count));
    daemons_.basis = basis;
    return client_.push(step, gradient, behind, basis, rows);
  }
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis, const RowBatch* rows) override {
    return std::make_unique<LatePush>([=, this] { return push(step, gradient, behind, basis, rows); });
  }
  Rounds* rounds() override { return this; }
  SampleSource* sampleSource() override { return this; }
  Pending<RoundDue> roundDue(Version version) override { return client_.roundDue(version); }
  Result<AssignedSamples> takeSamples(const SamplesRequest& request) override {
    const auto assigned = client_.takeSamples(request);
    // A daemon that is about to move its model lets no trainer wait.
    if (assigned.ok() && assigned->what == AssignedSamples::What::nothingNow) daemons_.asks = true;
    return assigned;
  }
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override {
    return client_.ping(calls, outstanding);
  }
  Status leave() override { return client_.leave(); }
  void interrupt() override {}
  uint64_t bytesPulled() const override { return 5; }
  uint64_t bytesPushed() const override { return 6; }

 private:
  Daemons& daemons_;
  FakeClient client_;
};

/// A client of `old`, whose model may move to `now`; `events` has the daemon's reports of that. They outlive
/// it.
std::unique_ptr<MovingClient> clientOf(Daemons& old, Daemons& now, std::vector<std::string>& events) {
  return std::make_unique<MovingClient>(
      std::make_shared<ClientLock>(), std::make_unique<FakeMovable>(old),
      [&now](const std::vector<std::string>& servers,
             std::chrono::milliseconds) -> Result<std::unique_ptr<MovableClient>> {
        CHECK(servers == std::vector<std::string>{"tcp://new:1"});
        return std::unique_ptr<MovableClient>(std::make_unique<FakeMovable>(now));
      },
      std::chrono::seconds(30), [&events](const ClientEvent& event) { events.push_back(event.line); });
}

/// A trainer at `old`, whose model may move to `now`. Owned by one thread.
struct Trainer {
  Trainer() {
    now.count = 2;
    now.shards = 3;
    client = clientOf(old, now, events);
    PSD_REQUIRE_OK(client->join({Rank{2}, 4}, kModel, [this] { return std::span<const float>(values); }));
  }
  void moves() {
    now.daemon.values = old.daemon.values;
    now.daemon.version = old.daemon.version;
    now.daemon.modelSignature = kModel.signature();
    now.daemon.tables = kModel.tables;
    old.asks = true;
    old.answer = DaemonAddresses{{"tcp://new:1"}, {"tcp://new:2"}};
  }

  Daemons old, now;
  std::vector<float> values = std::vector<float>(16, 1.f), gradient = std::vector<float>(16, 1.f);
  std::vector<std::string> events;
  std::unique_ptr<MovingClient> client;
};

TEST_CASE("MovingClient: continues at other daemons with the next pull, once everything sent is answered") {
  Trainer trainer;
  trainer.old.daemon.isSlow = true;
  const auto pulled = trainer.client->pull(trainer.values).wait();
  PSD_REQUIRE_OK(pulled);
  auto push = trainer.client->push(Step{1}, trainer.gradient, 1, pulled->versions);
  auto due = trainer.client->roundDue(Version{1});
  CHECK_FALSE(due.done());
  trainer.moves();
  CHECK(trainer.old.asides == 0);
  PSD_REQUIRE_OK(trainer.client->pull(trainer.values).wait());
  CHECK(trainer.old.asides == 1);
  CHECK(trainer.old.openAtAside == 0);
  CHECK(trainer.now.log == std::vector<std::string>{"joined as 2"});
  CHECK((trainer.now.from.move == 7 && trainer.now.from.daemon == 8 && trainer.now.from.held.size() == 1));
  PSD_REQUIRE_OK(push.wait());  // the answer was kept
  CHECK(due.done());
  CHECK(due.wait().error().code == ErrorCode::unavailable);  // to be asked again
  CHECK(trainer.old.daemon.steps == std::vector<uint64_t>{1});
  REQUIRE(trainer.events.size() == 1);
  CHECK(trainer.events.front().find(
            "the model has moved to tcp://new:1 tcp://new:2, and so has this trainer") == 0);
  CHECK(trainer.client->bytesPulled() == 10);
}

TEST_CASE("MovingClient: the next step continues a move whose wait was ended") {
  Trainer trainer;
  trainer.moves();
  trainer.now.endedJoins = 2;
  for (int i = 0; i < 2; i++) {
    CHECK(trainer.client->pull(trainer.values).wait().error().code == ErrorCode::interrupted);
  }
  PSD_REQUIRE_OK(trainer.client->pull(trainer.values).wait());
  CHECK(trainer.old.asides == 1);
  CHECK(trainer.now.log == std::vector<std::string>{"joined as 2"});
  CHECK(trainer.events.size() == 1);
}

TEST_CASE("MovingClient: stays if the move is abandoned, and does not move between a pull and its push") {
  Trainer trainer;
  const auto pulled = trainer.client->pull(trainer.values).wait();
  PSD_REQUIRE_OK(pulled);
  trainer.old.asks = true;
  PSD_REQUIRE_OK(trainer.client->push(Step{1}, trainer.gradient, 1, pulled->versions).wait());
  CHECK(trainer.old.asides == 0);
  PSD_REQUIRE_OK(
      trainer.client->push(Step{2}, trainer.gradient, 1, pulled->versions).wait());  // it does not pull
  CHECK(trainer.old.asides == 1);
  CHECK(trainer.old.daemon.steps == std::vector<uint64_t>{1, 2});
  CHECK(trainer.now.log.empty());
}

TEST_CASE("MovingClient: a gradient from before the move counts from the oldest version of its pull") {
  Trainer trainer;
  PSD_REQUIRE_OK(trainer.client->pull(trainer.values).wait());
  trainer.moves();
  PSD_REQUIRE_OK(trainer.client->pull(trainer.values).wait());
  trainer.now.daemon.version = 9;
  PSD_REQUIRE_OK(trainer.client->push(Step{1}, trainer.gradient, 1, {Version{5}, Version{4}}).wait());
  CHECK(trainer.now.basis == std::vector<Version>(3, Version{4}));
}

TEST_CASE("MovingClient: rows divided before the move are sent as the new daemons divide them") {
  Trainer trainer;
  RowBatch rows = trainer.client->makeRowBatch();
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 40; i++) ids.push_back(i * 0x9e3779b97f4a7c15);
  const RowBatch::Feature feature{0, ids};
  rows.make({&feature, 1});
  for (size_t i = 0; i < ids.size(); i++) {
    trainer.now.daemon.rows[{0, rows.ids(0)[i]}] = {static_cast<float>(i), -static_cast<float>(i)};
  }
  trainer.moves();
  const auto pulled = trainer.client->pull(trainer.values, &rows).wait();
  PSD_REQUIRE_OK(pulled);
  CHECK(trainer.old.asides == 1);
  CHECK(rows.daemons() == 1);
  bool right = true;
  for (size_t i = 0; i < ids.size(); i++) {
    right = right && rows.rows(0)[2 * i] == static_cast<float>(i) &&
            rows.rows(0)[2 * i + 1] == -static_cast<float>(i);
    rows.gradients(0)[2 * i] = static_cast<float>(10 * i);
  }
  CHECK(right);
  trainer.now.daemon.learningRate = 1;
  PSD_REQUIRE_OK(trainer.client->push(Step{1}, trainer.gradient, 1, pulled->versions, &rows).wait());
  for (size_t i = 0; i < ids.size(); i++) {
    right = right && trainer.now.daemon.row(0, rows.ids(0)[i])[0] ==
                         static_cast<float>(i) - static_cast<float>(10 * i);
  }
  CHECK(right);
}

TEST_CASE("MovingClient: if it cannot join the other daemons all its calls fail with that") {
  Trainer trainer;
  trainer.moves();
  trainer.now.daemon.modelSignature = 1;  // another model
  const auto pulled = trainer.client->pull(trainer.values).wait();
  REQUIRE_FALSE(pulled.ok());
  CHECK(pulled.message().find("the model has moved to tcp://new:1 tcp://new:2: ") == 0);
  CHECK(trainer.client->push(Step{1}, trainer.gradient, 1, {}).wait().message() == pulled.message());
  CHECK_FALSE(trainer.client->leave().ok());
}

TEST_CASE("MovingClient: arrays in device memory keep working after a move, or it fails") {
  for (const bool takes : {true, false}) {
    Trainer trainer;
    REQUIRE(trainer.client->useDeviceMemory());
    trainer.moves();
    trainer.now.takesDevice = takes;
    const auto pulled = trainer.client->pull(trainer.values).wait();
    CHECK(pulled.ok() == takes);
    CHECK(trainer.now.onDevice == takes);
    if (!takes)
      CHECK(pulled.message().find("in the memory of a CUDA device, which several daemons") !=
            std::string::npos);
  }
  Trainer trainer;  // one whose arrays are in host memory
  trainer.moves();
  PSD_REQUIRE_OK(trainer.client->pull(trainer.values).wait());
  CHECK_FALSE(trainer.now.onDevice);
}

TEST_CASE("MovingClient: a trainer that waits for samples quiesces, and asks again") {
  Trainer trainer;
  trainer.moves();
  trainer.old.asks = false;
  trainer.old.daemon.assignment = {{.what = AssignedSamples::What::nothingNow}};
  trainer.now.daemon.assignment = {
      {.what = AssignedSamples::What::range, .epoch = 1, .begin = 2, .count = 3}};
  const SamplesRequest waits{.step = Step{1}, .count = 3, .samples = 9, .epochs = 2, .wait = true};
  const auto assigned = trainer.client->takeSamples(waits);
  PSD_REQUIRE_OK(assigned);
  CHECK((assigned->what == AssignedSamples::What::range && assigned->count == 3));
  CHECK(trainer.old.asides == 1);
}

/// An observer at `old`, whose model may move to `now`. Owned by one thread.
struct Reader {
  Reader() {
    old.daemon.values.assign(16, 1.f);
    old.daemon.tables = kModel.tables;
    now = old;
    now.daemon.values.assign(16, 2.f);
    now.count = 2;
    client = clientOf(old, now, events);
    PSD_REQUIRE_OK(client->observe(kModel));
  }
  void moves() { old.movedTo = {{"tcp://new:1"}, {"tcp://new:2"}}; }
  bool readsNew() { return values == std::vector<float>(16, 2.f); }

  Daemons old, now;
  std::vector<float> values = std::vector<float>(16);
  std::vector<std::string> events;
  std::unique_ptr<MovingClient> client;
};

TEST_CASE("MovingClient: an observer continues at other daemons, with the first call after the move") {
  Reader reader;
  RowBatch rows = reader.client->makeRowBatch();
  const std::vector<uint64_t> ids{3, 4, 5};
  const RowBatch::Feature feature{0, ids};
  rows.make({&feature, 1});
  PSD_REQUIRE_OK(reader.client->pull(reader.values, &rows).wait());
  CHECK(reader.client->view().size() == 16);
  reader.moves();
  reader.now.daemon.rows[{0, 4}] = {7.f, 8.f};
  reader.now.refusals = 2;  // until they know that the move is done
  CHECK(reader.client->view().empty());
  PSD_REQUIRE_OK(reader.client->pull(reader.values, &rows).wait());
  CHECK(reader.readsNew());
  CHECK((rows.rows(0)[2 * rows.places(0)[1]] == 7.f));
  CHECK(reader.client->view().size() == 16);
  CHECK(reader.now.observed == 1);
  CHECK(reader.client->bytesPulled() == 5 + 5);  // rejected attempts do not count
  REQUIRE(reader.events.size() == 1);
  CHECK(reader.events.front().find(
            "the model has moved to tcp://new:1 tcp://new:2, and so has this reader") == 0);
  PSD_REQUIRE_OK(reader.client->pull(reader.values).wait());
  CHECK(reader.events.size() == 1);
}

TEST_CASE("MovingClient: an observer's call interrupted by a daemon's end is repeated at the new ones") {
  for (const auto code : {ErrorCode::unavailable, ErrorCode::shuttingDown}) {
    Reader reader;
    reader.old.pullFails = Error{code, "the daemon has ended"};
    auto pull = reader.client->pull(reader.values);
    auto other = reader.client->pull(reader.values);
    reader.moves();
    PSD_REQUIRE_OK(pull.wait());
    CHECK(reader.readsNew());
    PSD_REQUIRE_OK(other.wait());
    CHECK(reader.events.size() == 1);
    // A rejected observer may not know the reason yet.
    CHECK((reader.old.askedWithin.back().count() > 0) == (code == ErrorCode::shuttingDown));
  }
}

TEST_CASE("MovingClient: if no model has moved an observer receives the error, once") {
  for (const auto code : {ErrorCode::unavailable, ErrorCode::shuttingDown, ErrorCode::notReady}) {
    Reader reader;
    reader.old.pullFails = Error{code, "as it is"};
    CHECK(reader.client->pull(reader.values).wait().message() == "as it is");
    CHECK(reader.now.observed == 0);
  }
  Reader reader;
  reader.moves();
  reader.now.daemon.values.clear();  // observers are rejected there
  const auto pulled = reader.client->pull(reader.values).wait();
  CHECK(pulled.message().find("the model has moved to tcp://new:1 tcp://new:2: ") == 0);
  CHECK(reader.client->pull(reader.values).wait().message() == pulled.message());
  CHECK(reader.events.empty());
}

}  // namespace
}  // namespace psd::client_moving_test
