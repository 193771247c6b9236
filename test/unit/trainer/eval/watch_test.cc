#include "trainer/eval/watch.h"

#include <chrono>
#include <vector>

#include "test/support/catch.h"
#include "test/unit/trainer/client/fake_client.h"
#include "test/unit/trainer/model/softmax_model.h"
#include "trainer/dataset/synthetic.h"

namespace psd {
namespace {

using namespace std::chrono_literals;
using testing::FakeClient;
using testing::FakeDaemon;
using testing::SoftmaxModel;

/// A watch that does not wait, and its reports.
struct Watcher {
  Status run(std::chrono::milliseconds every = 1h) {
    return Watch(client, model, *data)
        .run(
            every,
            [&](std::chrono::milliseconds most) {
              if (most == 0ms) return stopsWhileScoring;
              pauses.push_back(most);
              if (onPause) onPause();
              return pauses.size() == pausesMost;
            },
            [&](const EvalReport& report, double seconds) {
              reports.push_back(report);
              CHECK(seconds >= 0);
              return whenScored;
            },
            [&](const Error& why) { waits.push_back(why.message); });
  }

  FakeDaemon daemon;
  FakeClient client{daemon};
  SoftmaxModel model;
  std::unique_ptr<Dataset> data = makeSynthetic(400, Split::test, 1);
  size_t pausesMost = 3;
  bool stopsWhileScoring = false;
  Status whenScored;
  std::function<void()> onPause;
  std::vector<std::chrono::milliseconds> pauses;
  std::vector<EvalReport> reports;
  std::vector<std::string> waits;
};

void giveModel(FakeDaemon& daemon) { daemon.values.assign(SoftmaxModel().parameters().size(), 0.f); }

}  // namespace

TEST_CASE("a watch scores what the daemon has at the time, until it is stopped") {
  Watcher watcher;
  giveModel(watcher.daemon);
  watcher.onPause = [&] {
    watcher.daemon.version += 5;
    watcher.daemon.values[0] += 1;
  };
  PSD_REQUIRE_OK(watcher.run());
  REQUIRE(watcher.reports.size() == 3);
  CHECK(watcher.reports[0].versions == std::vector<Version>{Version{0}});
  CHECK(watcher.reports[2].versions == std::vector<Version>{Version{10}});
  CHECK(watcher.reports[0].score.samples == 100);
  CHECK(watcher.reports[0].score.loss() != watcher.reports[1].score.loss());
  CHECK(watcher.waits.empty());
  // The time that scoring took is not waited for again.
  for (const auto pause : watcher.pauses) CHECK((pause > 0ms && pause <= 1h));
}

TEST_CASE("a watch waits for a model and says so once") {
  Watcher watcher;
  watcher.pausesMost = 4;
  watcher.onPause = [&] {
    if (watcher.pauses.size() == 2) giveModel(watcher.daemon);
  };
  PSD_REQUIRE_OK(watcher.run());
  CHECK(watcher.waits == std::vector<std::string>{"the model has no values yet"});
  CHECK(watcher.reports.size() == 2);
}

TEST_CASE("a watch that is stopped while it scores gives no partial score") {
  Watcher watcher;
  giveModel(watcher.daemon);
  watcher.stopsWhileScoring = true;
  PSD_REQUIRE_OK(watcher.run());
  CHECK(watcher.reports.empty());
  CHECK(watcher.pauses.empty());
}

TEST_CASE("a watch ends with errors: of the daemon, and of the receiver of the reports") {
  struct Ending : FakeClient {
    using FakeClient::FakeClient;
    Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows) override {
      if (pulls++ == 0) return FakeClient::pull(destination, rows);
      return testing::ready<PullInfo>(Error{ErrorCode::unavailable, "the connection broke"});
    }
    int pulls = 0;
  };
  FakeDaemon daemon;
  giveModel(daemon);
  Ending client(daemon);
  SoftmaxModel model;
  const auto data = makeSynthetic(40, Split::test, 1);
  int scores = 0;
  const Status ended = Watch(client, model, *data)
                           .run(
                               1h, [](auto) { return false; },
                               [&](const EvalReport&, double) {
                                 ++scores;
                                 return Status();
                               },
                               [](const Error&) {});
  CHECK(scores == 1);
  CHECK(ended.message() == "the connection broke");
  CHECK(Watch::daemonEnded(ended.error()));

  Watcher full;
  giveModel(full.daemon);
  full.whenScored = {ErrorCode::io, "the disk is full"};
  CHECK(full.run().message() == "the disk is full");
  CHECK(full.reports.size() == 1);
  CHECK_FALSE(Watch::daemonEnded(full.whenScored.error()));
}

}  // namespace psd
