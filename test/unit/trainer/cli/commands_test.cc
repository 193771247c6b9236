#include "trainer/cli/commands.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <limits>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/unit/trainer/client/fake_client.h"
#include "test/unit/trainer/dataset/idx_writer.h"
#include "trainer/cli/stop_signals.h"

namespace psd::commands_test {
namespace {

using Catch::Matchers::Contains;
using testing::FakeClient;
using testing::FakeDaemon;

template <class SomeClient>
Connect connectAs(FakeDaemon& daemon) {
  return [&daemon](const ClientOptions&) -> Result<std::unique_ptr<Client>> {
    return std::unique_ptr<Client>(std::make_unique<SomeClient>(daemon));
  };
}

Connect connectTo(FakeDaemon& daemon) { return connectAs<FakeClient>(daemon); }

/// Fails the test: wrong input must be found before the daemon is contacted.
Result<std::unique_ptr<Client>> mustNotConnect(const ClientOptions&) {
  FAIL("connected");
  return Error{};
}

CommonOptions mlpOnSynthetic() {
  CommonOptions common;
  common.model = "mlp";
  common.data = "synthetic:400";
  common.device = "cpu";
  return common;
}

constexpr size_t kAllSteps = 26;  // of trainMlp()

TrainCommand trainMlp(uint32_t rank = 0, uint32_t worldSize = 1) {
  TrainCommand command{mlpOnSynthetic(), {}, ""};
  command.loop.membership = {Rank{rank}, worldSize};
  command.loop.epochs = 2;
  return command;
}

}  // namespace

TEST_CASE("train learns, leaves, and rank 0 scores the test set, and eval agrees") {
  FakeDaemon daemon;
  daemon.learningRate = 0.03f;
  std::ostringstream out;
  const auto signal = runTrain(trainMlp(), connectTo(daemon), out, false);
  PSD_REQUIRE_OK(signal);
  CHECK(*signal == 0);
  CHECK(daemon.left == 1);
  CHECK(daemon.steps.size() == 26);
  CHECK_THAT(out.str(), Contains("rank 0  done after 26 steps, 800 samples"));
  CHECK_THAT(out.str(), Contains("rank 0  test loss ") && Contains("on 100 synthetic images"));

  std::ostringstream human, json;
  PSD_REQUIRE_OK(runEval({mlpOnSynthetic(), false}, connectTo(daemon), human));
  PSD_REQUIRE_OK(runEval({mlpOnSynthetic(), true}, connectTo(daemon), json));
  CHECK_THAT(out.str(), Contains("rank 0  test " + human.str()));
  const auto report = nlohmann::json::parse(json.str());
  CHECK(report["accuracy"] > 0.95);
  CHECK(report["samples"] == 100);
  CHECK(report["versions"] == nlohmann::json{26});
}

TEST_CASE("eval --every continues until a signal, and each score is on the screen and in the file") {
  FakeDaemon daemon;
  std::ostringstream out;
  PSD_REQUIRE_OK(runTrain(trainMlp(), connectTo(daemon), out, false));
  struct Interrupting : FakeClient {
    using FakeClient::FakeClient;
    Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows) override {
      if (++pulls == 3) std::raise(SIGTERM);
      return FakeClient::pull(destination, rows);
    }
    int pulls = 0;
  };
  const testing::TempDir folder;
  EvalCommand command{mlpOnSynthetic()};
  command.every = std::chrono::milliseconds(1);
  command.metricsFile = folder.file("scores.jsonl");
  std::ostringstream human;
  const auto signal = runEval(command, connectAs<Interrupting>(daemon), human);
  PSD_REQUIRE_OK(signal);
  CHECK(*signal == SIGTERM);
  CHECK_THAT(human.str(), Contains("s  version 26  loss ") && Contains("% on 100 synthetic images\n"));
  CHECK(std::ranges::count(human.str(), '\n') == 2);  // the third was abandoned

  std::istringstream written(testing::readFile(command.metricsFile));
  double before = -1;
  int lines = 0;
  for (std::string line; std::getline(written, line); ++lines) {
    const auto score = nlohmann::json::parse(line);
    CHECK(score["seconds"] > before);
    before = score["seconds"];
    CHECK(score["samples"] == 100);
    CHECK(score["versions"] == nlohmann::json{26});
    CHECK_THAT(human.str(), Contains(fmt::format("loss {:.4f}", score["loss"].get<double>())));
  }
  CHECK(lines == 2);
}

TEST_CASE("eval --every ends when the daemon that it has scored is gone, and other errors are errors") {
  FakeDaemon daemon;
  std::ostringstream trained;
  PSD_REQUIRE_OK(runTrain(trainMlp(), connectTo(daemon), trained, false));
  struct Ending : FakeClient {
    Ending(FakeDaemon& daemon) : FakeClient(daemon), daemon(daemon) {}
    Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows) override {
      if (daemon.version++ == daemon.failPushAtStep) return testing::ready<PullInfo>(daemon.failure);
      return FakeClient::pull(destination, rows);
    }
    FakeDaemon& daemon;
  };
  EvalCommand command{mlpOnSynthetic()};
  command.every = std::chrono::milliseconds(1);
  const auto run = [&](uint64_t failAfter, ErrorCode code) {
    daemon.version = 0;
    daemon.failPushAtStep = failAfter;
    daemon.failure = {code, "over"};
    std::ostringstream out;
    return runEval(command, connectAs<Ending>(daemon), out);
  };
  for (const ErrorCode end : {ErrorCode::unavailable, ErrorCode::shuttingDown}) {
    CHECK(run(2, end).value() == 0);
    CHECK(run(0, end).message() == "over");  // nothing was scored
  }
  CHECK(run(2, ErrorCode::modelMismatch).message() == "over");
}

TEST_CASE("another rank reports its loss and does not read the test set") {
  FakeDaemon daemon;
  std::ostringstream out;
  PSD_REQUIRE_OK(runTrain(trainMlp(1, 2), connectTo(daemon), out, false));
  CHECK_THAT(out.str(), Contains("rank 1  done after 14 steps, 400 samples") && !Contains("test"));
}

TEST_CASE("metrics are written to the file that --metrics names") {
  FakeDaemon daemon;
  const testing::TempDir folder;
  TrainCommand command = trainMlp();
  command.metricsFile = folder.file("metrics.jsonl");
  std::ostringstream out;
  PSD_REQUIRE_OK(runTrain(command, connectTo(daemon), out, false));
  const std::string written = testing::readFile(command.metricsFile);
  CHECK(std::count(written.begin(), written.end(), '\n') == 26);
}

TEST_CASE("a trainer ended by a rejection says goodbye, but not one whose daemon ends") {
  for (const auto& [code, goodbyes] : {std::pair{ErrorCode::nonFinite, 1},
                                       {ErrorCode::deadlineExceeded, 1},
                                       {ErrorCode::unavailable, 0},
                                       {ErrorCode::shuttingDown, 0}}) {
    FakeDaemon daemon;
    daemon.failPushAtStep = 3;
    daemon.failure = {code, "refused"};
    std::ostringstream out;
    const auto ended = runTrain(trainMlp(), connectTo(daemon), out, false);
    REQUIRE_FALSE(ended.ok());
    CHECK(ended.error().code == code);
    CHECK(daemon.left == goodbyes);
  }
}

TEST_CASE("a signal ends training between steps, with a goodbye and no score") {
  FakeDaemon daemon;
  // The signal comes in the middle of step 3.
  struct Interrupting : FakeClient {
    using FakeClient::FakeClient;
    Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                           const std::vector<Version>& basis, const RowBatch* rows) override {
      if (step.value == 3) std::raise(SIGTERM);
      return FakeClient::push(step, gradient, behind, basis, rows);
    }
  };
  std::ostringstream out;
  const auto signal = runTrain(trainMlp(), connectAs<Interrupting>(daemon), out, false);
  PSD_REQUIRE_OK(signal);
  CHECK(*signal == SIGTERM);
  CHECK(daemon.steps.size() == 3);
  CHECK(daemon.left == 1);
  CHECK_THAT(out.str(), Contains("stopped after 3 steps") && !Contains("test"));
}

TEST_CASE("a signal ends the wait for the final parameters like that for any others") {
  FakeDaemon daemon;
  struct Interrupting : FakeClient {
    Interrupting(FakeDaemon& daemon) : FakeClient(daemon), daemon(daemon) {}
    Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows) override {
      if (daemon.steps.size() < kAllSteps) return FakeClient::pull(destination, rows);
      std::raise(SIGTERM);
      return testing::ready<PullInfo>(Error{ErrorCode::interrupted, "told to stop"});
    }
    FakeDaemon& daemon;
  };
  std::ostringstream out;
  const auto signal = runTrain(trainMlp(), connectAs<Interrupting>(daemon), out, false);
  PSD_REQUIRE_OK(signal);
  CHECK(*signal == SIGTERM);
  CHECK(daemon.left == 1);
  CHECK_THAT(out.str(), Contains("stopped after 26 steps") && !Contains("test"));
}

TEST_CASE("a signal during the goodbye skips the test set") {
  FakeDaemon daemon;
  struct Interrupting : FakeClient {
    using FakeClient::FakeClient;
    Status leave() override {
      std::raise(SIGTERM);
      return FakeClient::leave();
    }
  };
  std::ostringstream out;
  const auto signal = runTrain(trainMlp(), connectAs<Interrupting>(daemon), out, false);
  PSD_REQUIRE_OK(signal);
  CHECK(*signal == SIGTERM);
  CHECK_THAT(out.str(), Contains("done after 26 steps") && !Contains("test"));
}

TEST_CASE("while the model is scored a signal ends the process") {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);  // Catch2 installs its own handler
  // Checks the action of SIGTERM when the summary is written, just before the score.
  struct Watching : std::stringbuf {
    explicit Watching(void (*handler)(int)) : before(handler) {}
    int sync() override {
      struct sigaction action {};
      sigaction(SIGTERM, nullptr, &action);
      if (str().find("done after") != std::string::npos) ends = action.sa_handler == before;
      return std::stringbuf::sync();
    }
    void (*const before)(int);
    bool ends = false;
  };
  FakeDaemon daemon;
  Watching written(before.sa_handler);
  std::ostream out(&written);
  PSD_REQUIRE_OK(runTrain(trainMlp(), connectTo(daemon), out, false));
  CHECK(written.ends);
  CHECK_THAT(written.str(), Contains("rank 0  test loss "));
}

TEST_CASE("final parameters that are not finite are an error, not a score") {
  FakeDaemon daemon;
  struct Overflowing : FakeClient {
    Overflowing(FakeDaemon& daemon) : FakeClient(daemon), daemon(daemon) {}
    Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows) override {
      if (daemon.steps.size() == kAllSteps) daemon.values[3] = std::numeric_limits<float>::quiet_NaN();
      return FakeClient::pull(destination, rows);
    }
    FakeDaemon& daemon;
  };
  std::ostringstream out;
  const auto signal = runTrain(trainMlp(), connectAs<Overflowing>(daemon), out, false);
  REQUIRE_FALSE(signal.ok());
  CHECK(signal.error().code == ErrorCode::nonFinite);
  CHECK_THAT(signal.message(), Contains("holds nan at element 3"));
  CHECK(daemon.left == 1);
  CHECK_THAT(out.str(), Contains("done after 26 steps") && !Contains("test"));
}

TEST_CASE("a failing trainer does not say goodbye as if it were done") {
  FakeDaemon daemon;
  daemon.failPushAtStep = 2;
  daemon.failure = {ErrorCode::unavailable, "the connection broke"};
  std::ostringstream out;
  const auto signal = runTrain(trainMlp(), connectTo(daemon), out, false);
  REQUIRE_FALSE(signal.ok());
  CHECK(signal.message() == "step 2 (epoch 1): the connection broke");
  CHECK(daemon.left == 0);
}

TEST_CASE("wrong input is found before the daemon is contacted, and names the flag") {
  TrainCommand command = trainMlp();
  std::string expected;
  SECTION("data") {
    command.common.data = "/nowhere";
    expected = "--data: '/nowhere': no such file, folder or data set";
  }
  SECTION("a broken data file") {
    const testing::TempDir folder;
    testing::writeTinyMnist(folder, 4, 4);
    testing::writeFile(folder.file("train-images-idx3-ubyte"), "short");
    command.common.data = folder.path();
    expected = "--data: ";
  }
  SECTION("data that the model does not accept") {
    command.common.model = "lstm_lm:embedding=2,hidden=2,vocabulary=9";
    expected =
        "column 'tokens' is not there; expected i64[any] below 9: the data (400 synthetic images) has image "
        "f32[1,28,28], label i64 below 10, but the model lstm_lm takes tokens i64[any] below 9";
  }
  SECTION("an option of the model") {
    command.common.model = "lstm_lm:hiden=2";
    expected = "--model: model 'lstm_lm': 'hiden' is not an option; expected embedding, hidden";
  }
  SECTION("model") {
    command.common.model = "mlpp";
    expected = "--model: 'mlpp' is not a model";
  }
  SECTION("device") {
    command.common.device = "tpu";
    expected = "--device: 'tpu' is not a device";
  }
  SECTION("metrics") {
    command.metricsFile = "/nowhere/m";
    expected = "--metrics: /nowhere/m";
  }
  SECTION("more trainers than images") {
    command.loop.membership.worldSize = 401;
    expected = "--world-size: 401 trainers for 400 synthetic images";
  }
  std::ostringstream out;
  const auto signal = runTrain(command, mustNotConnect, out, false);
  REQUIRE_FALSE(signal.ok());
  CHECK_THAT(signal.message(), Catch::Matchers::StartsWith(expected));
  CHECK(out.str().empty());
}

TEST_CASE("signals are remembered and reported only while requested") {
  std::promise<int> told;
  std::promise<void> impatient;
  {
    const StopSignals signals({[&](int signal) { told.set_value(signal); }, [&] { impatient.set_value(); },
                               std::chrono::milliseconds(1)});
    CHECK(signals.received() == 0);
    std::raise(SIGINT);
    CHECK(signals.received() == SIGINT);
    CHECK(told.get_future().get() == SIGINT);
    impatient.get_future().get();
  }
  const auto never = [](auto...) { FAIL("there was no signal"); };
  const StopSignals again({never, never});
  CHECK(again.received() == 0);
}

}  // namespace psd::commands_test
