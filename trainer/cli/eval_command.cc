#include <csignal>
#include <future>
#include <memory>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/text/quantity.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/setup.h"
#include "trainer/cli/stop_signals.h"
#include "trainer/eval/evaluate.h"
#include "trainer/eval/watch.h"
#include "trainer/loop/fit.h"
#include "trainer/loop/json_lines.h"

namespace psd {
namespace {

/// The scored data and model, and the output of the scores.
struct Scoring {
  std::unique_ptr<Dataset> test;
  std::unique_ptr<Model> model;
  std::unique_ptr<JsonLines> metrics;  ///< null without --metrics
};

/// Called before the daemon is contacted, so that invalid input fails without side effects.
Result<Scoring> prepareScoring(const EvalCommand& command) {
  Scoring scoring;
  PSD_ASSIGN_OR_RETURN(scoring.test, openData(command.common, Split::test));
  PSD_ASSIGN_OR_RETURN(scoring.model, buildModel(command.common));
  PSD_RETURN_IF_ERROR(checkFit(*scoring.model, *scoring.test));
  if (command.metricsFile.empty()) return scoring;
  auto metrics = JsonLines::create(command.metricsFile);
  if (!metrics.ok()) return Error{metrics.error().code, "--metrics: " + metrics.message()};
  scoring.metrics = *std::move(metrics);
  return scoring;
}

/// Scores periodically. Returns the signal that ended it, or 0 if the daemon is gone.
Result<int> watchServer(const EvalCommand& command, Client& client, const Scoring& scoring,
                        std::ostream& out) {
  std::promise<void> signalled;
  const std::future<void> stop = signalled.get_future();
  const StopSignals signals({[&](int) { signalled.set_value(); }, [&] { client.interrupt(); }});
  bool scored = false;
  const Status ended =
      Watch(client, *scoring.model, *scoring.test)
          .run(
              command.every,
              [&](std::chrono::milliseconds most) {
                return signals.received() != 0 || stop.wait_for(most) == std::future_status::ready;
              },
              [&](const EvalReport& report, double seconds) -> Status {
                scored = true;
                const std::string json = formatJson(report, seconds);
                if (scoring.metrics) scoring.metrics->add(json);
                if (command.json) {
                  out << json << std::endl;
                } else {
                  out << fmt::format("{}  {}  {}", durationText(seconds), formatVersions(report.versions),
                                     formatScore(report.score, report.data))
                      << std::endl;
                }
                return out ? Status() : Status(ErrorCode::io, "standard output cannot be written");
              },
              [](const Error& why) { spdlog::info("waiting for a model: {}", why.message); });
  if (scoring.metrics) PSD_RETURN_IF_ERROR(scoring.metrics->finish());
  if (ended.ok()) return signals.received();
  if (!scored || !Watch::daemonEnded(ended.error())) return ended.error();
  spdlog::info("the daemon is gone: {}", ended.message());
  return 0;
}

}  // namespace

Result<int> runEval(const EvalCommand& command, const Connect& connect, std::ostream& out) {
  PSD_ASSIGN_OR_RETURN(const Scoring scoring, prepareScoring(command));
  ClientOptions options = command.common.client;
  options.onEvent = [](const ClientEvent& event) { spdlog::info("{}", event.line); };
  PSD_ASSIGN_OR_RETURN(const auto client, connect(options));
  if (command.every.count() != 0) return watchServer(command, *client, scoring, out);
  PSD_ASSIGN_OR_RETURN(const EvalReport report, evaluateServer(*client, *scoring.model, *scoring.test));
  const std::string json = formatJson(report);
  if (scoring.metrics) {
    scoring.metrics->add(json);
    PSD_RETURN_IF_ERROR(scoring.metrics->finish());
  }
  out << (command.json ? json : formatScore(report.score, report.data)) << std::endl;
  return 0;
}

}  // namespace psd
