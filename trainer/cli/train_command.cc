#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <spdlog/spdlog.h>

#include "common/log/log_line.h"
#include "trainer/allreduce/gloo_group.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/remote_run.h"
#include "trainer/cli/setup.h"
#include "trainer/cli/stop_signals.h"
#include "trainer/dataset/text.h"
#include "trainer/eval/evaluate.h"
#include "trainer/loop/fit.h"
#include "trainer/loop/metrics.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/reporter.h"
#include "trainer/loop/tensorboard.h"
#include "trainer/model/initial_values.h"

namespace psd {
namespace {

constexpr Rank kScoringRank{0};  // scores the final model on the test set
constexpr std::chrono::seconds kLeaveTimeout{2};

/// Inputs and outputs of a run. Data and files are opened before the daemon or executor is contacted, so that
/// invalid input fails before any connection.
struct RunResources {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> test;    ///< set if this trainer is, or may become, kScoringRank
  std::optional<RemoteRun> remote;  ///< with --execute; its model is moved to `model`
  std::unique_ptr<Model> model;
  std::unique_ptr<MetricsWriter> metrics;  ///< null without --metrics
  std::unique_ptr<TensorboardWriter>
      tensorboard;  ///< null without --tensorboard, and before the rank is known
};

/// Called on the client's events: disconnects, reconnects, takeovers.
using OnEvent = std::function<void(const ClientEvent&)>;

/// The model that --model names, or the executor's.
Status openModel(const TrainCommand& command, const OnEvent& onEvent, RunResources& resources) {
  if (command.execute.empty()) {
    PSD_ASSIGN_OR_RETURN(resources.model, buildModel(command.common));
    return {};
  }
  PSD_ASSIGN_OR_RETURN(resources.remote, openRemoteRun(command, onEvent));
  resources.model = std::move(resources.remote->model);
  return {};
}

Result<RunResources> prepare(const TrainCommand& command, const OnEvent& onEvent) {
  RunResources resources;
  const Membership& membership = command.loop.membership;
  PSD_ASSIGN_OR_RETURN(resources.train, openData(command.common, Split::train));
  if (resources.train->sampleCount() < membership.worldSize) {
    return Error{ErrorCode::invalidArgument, "--world-size: " + std::to_string(membership.worldSize) +
                                                 " trainers for " + resources.train->describe() +
                                                 "; expected at least one sample each"};
  }
  if (membership.rank == kScoringRank || membership.anyRank) {
    PSD_ASSIGN_OR_RETURN(resources.test, openData(command.common, Split::test));
  }
  if (!command.metricsFile.empty()) {
    auto metrics = MetricsWriter::create(command.metricsFile);
    if (!metrics.ok()) {
      return Error{metrics.error().code, "--metrics: " + metrics.message()};
    }
    resources.metrics = std::move(metrics).value();
  }
  if (!command.tensorboardFolder.empty()) {
    const Status writable = TensorboardWriter::checkFolder(command.tensorboardFolder);
    if (!writable.ok()) return Error{writable.error().code, "--tensorboard: " + writable.message()};
  }
  PSD_RETURN_IF_ERROR(openModel(command, onEvent, resources));
  PSD_RETURN_IF_ERROR(checkFit(*resources.model, *resources.train));
  PSD_RETURN_IF_ERROR(
      checkBatchSize(*resources.train,
                     uint64_t{command.loop.batchSize} * (command.loop.autoBatch ? kAutoBatchFactorMax : 1)));
  if (resources.test) PSD_RETURN_IF_ERROR(checkFit(*resources.model, *resources.test));
  if (!command.initFile.empty()) {
    const Status loaded = loadInitialValues(*resources.model, *makePosixEnv(), command.initFile);
    if (!loaded.ok()) return Error{loaded.error().code, "--init: " + loaded.message()};
  }
  return resources;
}

/// Opens the event file for TensorBoard, in a folder named by the rank.
Status openTensorboard(const TrainCommand& command, Rank rank, RunResources& resources) {
  if (command.tensorboardFolder.empty()) return {};
  auto events = TensorboardWriter::create(command.tensorboardFolder + "/rank-" + std::to_string(rank.value));
  if (!events.ok()) return {events.error().code, "--tensorboard: " + events.message()};
  resources.tensorboard = std::move(events).value();
  return {};
}

/// Finishes the metrics and event files. `score`: of the final model; null: it was not scored.
Status finishFiles(RunResources& resources, uint64_t steps, const Score* score) {
  if (resources.metrics) PSD_RETURN_IF_ERROR(resources.metrics->finish());
  if (!resources.tensorboard) return {};
  if (score) {
    std::vector<std::string> tags;
    for (const Metric& metric : score->metrics) tags.push_back("eval/" + metric.name);
    std::vector<TensorboardWriter::Scalar> scalars;
    for (size_t i = 0; i < tags.size(); i++) scalars.emplace_back(tags[i], score->metrics[i].value());
    resources.tensorboard->add(steps, scalars);
  }
  return resources.tensorboard->finish();
}

void logStart(const TrainCommand& command, const RunResources& resources, const JoinInfo& info,
              const Membership& membership) {
  logLine(spdlog::level::info, {.event = "joined", .rank = membership.rank.value},
          "rank {} of {} joined: policy {}, {} shard(s) on {}, pulls by {}, pushes by {}, {}",
          membership.rank.value, membership.worldSize, info.policy, info.shardCount, info.device,
          info.pullTransport, info.pushTransport,
          info.initializedModel ? "initialized the model" : "the model has values");
  if (command.common.client.connections > 1) {
    spdlog::info("{} connection(s) of at most {}: {} shard(s), pulls by {}, pushes by {}", info.connections,
                 command.common.client.connections, info.shardCount, info.pullTransport, info.pushTransport);
  }
  if (info.local.inner) {
    spdlog::info("exchanges after {} step(s) of {}{}", info.local.period, info.local.inner->describe(),
                 info.local.endsEarly ? ", or fewer where the daemon asks for them" : "");
  }
  if (!command.initFile.empty() && !info.initializedModel) {
    spdlog::info("--init: '{}' is not used, as the model has values", command.initFile);
  }
  if (info.codec != "none" || info.pullCodec != "none") {
    spdlog::info("codec of pushes {}, of pulls {}", info.codec, info.pullCodec);
  }
  if (resources.remote) {
    spdlog::info("{} on {}, {}, batch size {}", resources.model->spec().name, resources.model->device(),
                 resources.train->describe(), command.loop.batchSize);
    return;
  }
  spdlog::info("{} ({} parameters) on {} with {} thread(s), {}, batch size {}{}", command.common.model,
               resources.model->spec().parameterCount(), resources.model->device(), command.common.threads,
               resources.train->describe(), command.loop.autoBatch ? "auto, nominally " : "",
               command.loop.batchSize);
}

/// Outcome of a run. A value type.
struct Outcome {
  TrainingSummary summary;
  int signal = 0;              ///< signal that ended it early
  std::optional<Score> score;  ///< of the final model, if an executor computed it
};

/// Leaves the run after an error that the connection survived, so that other trainers do not wait until this
/// one's lease expires. Returns `error`.
Error leaveAfterError(Client& client, const Error& error) {
  // The daemon is unreachable, the session has ended already, or the trainer must not count as finished.
  for (const ErrorCode code : {ErrorCode::unavailable, ErrorCode::sessionEnded, ErrorCode::interrupted,
                               ErrorCode::shuttingDown, ErrorCode::unauthenticated, ErrorCode::forbidden}) {
    if (error.code == code) return error;
  }
  std::promise<void> left;
  const auto watch = std::async(std::launch::async, [&client, over = left.get_future()] {
    if (over.wait_for(kLeaveTimeout) == std::future_status::timeout) client.interrupt();
  });
  static_cast<void>(client.leave());
  left.set_value();
  return error;
}

/// Trains and leaves the run. A signal ends the loop between two steps. If the final model is to be scored,
/// it is pulled after this trainer's last push; others may still be training.
Result<Outcome> trainAndLeave(TrainingLoop& loop, Client& client, RunResources& resources,
                              std::optional<Evaluation>& final, Progress& progress,
                              const StopSignals& signals) {
  Reporter reporter(client, tokensPerSample(*resources.train));
  std::vector<LoopObserver*> observers{&progress, &reporter};
  if (resources.metrics) observers.push_back(resources.metrics.get());
  if (resources.tensorboard) observers.push_back(resources.tensorboard.get());
  auto summary = loop.run(observers, [&] { return signals.received() != 0; });
  progress.finish();
  reporter.finish();
  if (!summary.ok()) return leaveAfterError(client, summary.error());
  if (final && !summary->interrupted) {
    const Status pulled = final->pull(client).status();
    summary->interrupted = !pulled.ok() && pulled.error().code == ErrorCode::interrupted;
    if (!summary->interrupted && !pulled.ok()) return leaveAfterError(client, pulled.error());
  }
  std::optional<Score> score;
  if (final && resources.remote && !summary->interrupted) {  // while the executor is still connected
    auto scored = final->score([&] { return signals.received() != 0; });
    summary->interrupted = !scored.ok() && scored.error().code == ErrorCode::interrupted;
    if (!summary->interrupted && !scored.ok()) return leaveAfterError(client, scored.error());
    if (scored.ok()) score = *std::move(scored);
  }
  PSD_RETURN_IF_ERROR(client.leave());
  // A signal matters only if the run was interrupted or the final score is still to be computed.
  return Outcome{*summary, summary->interrupted || final ? signals.received() : 0, std::move(score)};
}

/// A signal is first logged; after the timeout, calls in flight are interrupted, in case a step waits for
/// other trainers.
StopSignals::Listener listenerFor(Client& client, bool terminal) {
  const auto say = [terminal](int signal) {
    if (terminal) std::fputc('\n', stderr);  // below the progress line
    spdlog::info("{}: stopping after this step; a second signal stops immediately",
                 signal == SIGINT ? "SIGINT" : "SIGTERM");
  };
  return {say, [&client] { client.interrupt(); }};
}

/// The maker of averaging groups, for policies that use them; null if this build has none.
Result<std::unique_ptr<CollectiveMaker>> makeAveraging(const TrainCommand& command) {
  auto made = makeGlooGroups(command.allReduceHost);
  if (!made.ok()) return Error{made.error().code, "--allreduce-host: " + made.message()};
  return made;
}

}  // namespace

Result<int> runTrain(const TrainCommand& command, const Connect& connect, std::ostream& out, bool terminal) {
  std::optional<Progress> progress;
  ClientOptions options = command.common.client;
  options.onEvent = [&progress](const ClientEvent& event) {
    if (progress) progress->finish();
    spdlog::log(event.what == ClientEvent::What::broke ? spdlog::level::warn : spdlog::level::info, "{}",
                event.line);
  };
  PSD_ASSIGN_OR_RETURN(RunResources resources, prepare(command, options.onEvent));
  // With batch sizes chosen by the daemon, gradients are weighted, which happens in host memory.
  if (!command.loop.autoBatch) options.cudaDevice = resources.model->cudaDevice();
  std::unique_ptr<CollectiveMaker> averaging;
  if (!resources.remote) {
    PSD_ASSIGN_OR_RETURN(averaging, makeAveraging(command));
  }
  options.averages = averaging != nullptr;
  std::unique_ptr<Client> client;
  if (resources.remote) {
    client = std::move(resources.remote->client);
  } else {
    PSD_ASSIGN_OR_RETURN(client, connect(options));
  }
  std::optional<StopSignals> signals(std::in_place, listenerFor(*client, terminal));
  LoopOptions loopOptions = command.loop;
  loopOptions.averaging = averaging.get();
  TrainingLoop loop(*client, *resources.model, *resources.train, loopOptions);
  const auto info = loop.join();
  if (!info.ok() && info.error().code == ErrorCode::interrupted) return signals->received();
  if (!info.ok()) return leaveAfterError(*client, info.error());
  logStart(command, resources, *info, loop.membership());

  const Rank rank = loop.membership().rank;
  if (Status opened = openTensorboard(command, rank, resources); !opened.ok()) {
    return leaveAfterError(*client, opened.error());
  }
  if (resources.metrics) resources.metrics->setRank(rank);
  std::optional<Evaluation> final;  // on the test set
  if (rank == kScoringRank) {
    // Batches for an executor are no larger than in training.
    const size_t most = resources.remote ? std::min<size_t>(Evaluation::kBatchSize, command.loop.batchSize)
                                         : Evaluation::kBatchSize;
    final.emplace(*resources.model, *resources.test, most);
  }
  progress.emplace(out, terminal, rank);
  PSD_ASSIGN_OR_RETURN(const Outcome outcome,
                       trainAndLeave(loop, *client, resources, final, *progress, *signals));
  signals.reset();  // the run has been left; signals have their default action
  out << formatSummary(rank, outcome.summary) << std::endl;
  if (final && outcome.signal == 0) {
    Result<Score> scored = outcome.score ? Result<Score>(*outcome.score) : final->score();
    PSD_ASSIGN_OR_RETURN(const Score score, std::move(scored));
    PSD_RETURN_IF_ERROR(finishFiles(resources, outcome.summary.steps, &score));
    out << "rank " << rank.value << "  test " << formatScore(score, resources.test->describe()) << std::endl;
  } else {
    PSD_RETURN_IF_ERROR(finishFiles(resources, outcome.summary.steps, nullptr));
  }
  return outcome.signal;
}

}  // namespace psd
