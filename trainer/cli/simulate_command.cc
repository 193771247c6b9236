#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "common/checksum/crc32c.h"
#include "common/config/json_file.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/setup.h"
#include "trainer/cli/stop_signals.h"
#include "trainer/eval/evaluate.h"
#include "trainer/lab/simulation.h"
#include "trainer/loop/fit.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

/// A score and the moment it was taken.
struct TimedScore {
  Moment moment;
  EvalReport report;
};

/// Data and model of a simulation, and its scores so far.
struct SimulationParts {
  std::unique_ptr<Dataset> train, test;
  std::unique_ptr<Model> model;
  std::vector<TimedScore> scores;
  std::string parameters;  ///< checksum of the newest scored parameters
};

Result<SimulationParts> prepareParts(const SimulateCommand& command) {
  SimulationParts parts;
  PSD_ASSIGN_OR_RETURN(parts.train, openData(command.common, Split::train));
  if (parts.train->sampleCount() < command.options.trainers) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("--trainers: {} for {}; expected at least one sample each",
                             command.options.trainers, parts.train->describe())};
  }
  PSD_ASSIGN_OR_RETURN(parts.test, openData(command.common, Split::test));
  PSD_ASSIGN_OR_RETURN(parts.model, buildModel(command.common));
  PSD_RETURN_IF_ERROR(checkFit(*parts.model, *parts.train));
  PSD_RETURN_IF_ERROR(checkFit(*parts.model, *parts.test));
  return parts;
}

std::string momentText(const Moment& moment) {
  return fmt::format("step {}  time {:.1f}", moment.steps, moment.time);
}

Status scoreNow(SimulationParts& parts, Client& observer, const Moment& moment, std::ostream* out) {
  PSD_ASSIGN_OR_RETURN(EvalReport report, evaluateObserved(observer, *parts.model, *parts.test));
  PSD_ASSIGN_OR_RETURN(const auto values, parts.model->onHost(parts.model->parameters()));
  parts.parameters = crcText(crc32c(std::as_bytes(values)));
  if (out) *out << momentText(moment) << "  " << formatScore(report.score, report.data) << std::endl;
  parts.scores.push_back({moment, std::move(report)});
  return {};
}

Json scoreJson(const TimedScore& score) {
  Json json = {{"step", score.moment.steps}, {"time", score.moment.time}};
  for (const Metric& metric : score.report.score.metrics) json[metric.name] = metric.value();
  return json;
}

/// Staleness over the answered pushes of all trainers.
struct Staleness {
  double mean = 0;
  uint64_t max = 0;
};

Staleness stalenessOf(const SimulationReport& report) {
  Staleness all;
  double sum = 0, steps = 0;
  for (const TrainingSummary& trainer : report.trainers) {
    sum += trainer.stalenessMean * static_cast<double>(trainer.steps);
    steps += static_cast<double>(trainer.steps);
    all.max = std::max(all.max, trainer.stalenessMax);
  }
  if (steps > 0) all.mean = sum / steps;
  return all;
}

Json rankJson(const TrainingSummary& trainer) {
  return {{"steps", trainer.steps},
          {"samples", trainer.samples},
          {"loss", trainer.loss},
          {"staleness", {{"mean", trainer.stalenessMean}, {"max", trainer.stalenessMax}}},
          {"late", trainer.late},
          {"stale", trainer.stale}};
}

Json reportJson(const SimulateCommand& command, const SimulationParts& parts, const SimulationReport& report,
                const std::string& schedule) {
  const Staleness staleness = stalenessOf(report);
  Json json = {{"model", command.common.model},
               {"data", parts.train->describe()},
               {"policy", report.joined.policy},
               {"codec", report.joined.codec},
               {"pull_codec", report.joined.pullCodec},
               {"trainers", command.options.trainers},
               {"byzantine", command.options.byzantine},
               {"schedule", schedule},
               {"seed", command.options.seed},
               {"batch_size", command.options.batchSize},
               {"steps", report.end.steps},
               {"time", report.end.time},
               {"bytes_pulled", report.bytesPulled},
               {"bytes_pushed", report.bytesPushed},
               {"staleness", {{"mean", staleness.mean}, {"max", staleness.max}}},
               {"diverged", report.diverged.empty() ? Json() : Json(report.diverged)},
               {"interrupted", report.interrupted},
               {"parameters", parts.parameters.empty() ? Json() : Json(parts.parameters)}};
  json["score"] = report.diverged.empty() && !parts.scores.empty() ? scoreJson(parts.scores.back()) : Json();
  json["scores"] = Json::array();
  for (const TimedScore& score : parts.scores) json["scores"].push_back(scoreJson(score));
  json["ranks"] = Json::array();
  for (const TrainingSummary& trainer : report.trainers) json["ranks"].push_back(rankJson(trainer));
  return json;
}

/// A header, then one line per trainer.
std::string rankTable(const std::vector<TrainingSummary>& trainers) {
  std::string text = "rank   steps  staleness mean   max  late  stale\n";
  for (size_t rank = 0; rank < trainers.size(); rank++) {
    const TrainingSummary& trainer = trainers[rank];
    text += fmt::format("{:>4}  {:>6}  {:>14.2f}  {:>4}  {:>4}  {:>5}\n", rank, trainer.steps,
                        trainer.stalenessMean, trainer.stalenessMax, trainer.late, trainer.stale);
  }
  return text;
}

std::string reportText(const SimulateCommand& command, const SimulationParts& parts,
                       const SimulationReport& report, const std::string& schedule) {
  const Staleness staleness = stalenessOf(report);
  const std::string text = fmt::format(
      "{} virtual trainers, {}: {} steps in {:.1f} of virtual time, policy {}, staleness mean {:.2f} max "
      "{}\n{}",
      command.options.trainers, schedule, report.end.steps, report.end.time, report.joined.policy,
      staleness.mean, staleness.max, rankTable(report.trainers));
  if (!report.diverged.empty()) return text + "diverged: " + report.diverged;
  return text + "parameters " + parts.parameters;
}

}  // namespace

Result<int> runSimulate(const SimulateCommand& command, const Connect& connect, std::ostream& out) {
  PSD_ASSIGN_OR_RETURN(SimulationParts parts, prepareParts(command));
  PSD_ASSIGN_OR_RETURN(StepTimes schedule, StepTimes::parse(command.schedule, command.options.trainers));
  const std::string spec = schedule.spec();
  StopSignals signals(
      {[](int) { spdlog::info("stopping after this step; a second signal stops immediately"); }, [] {}});
  Simulation simulation(command.options, std::move(schedule), *parts.model, *parts.train, connect);
  const auto report = simulation.run(
      [&](Client& observer, const Moment& moment) {
        return scoreNow(parts, observer, moment, command.json ? nullptr : &out);
      },
      [&] { return signals.received() != 0; });
  if (!report.ok()) return report.error();
  out << (command.json ? jsonText(reportJson(command, parts, *report, spec))
                       : reportText(command, parts, *report, spec))
      << std::endl;
  return report->interrupted ? signals.received() : 0;
}

}  // namespace psd
