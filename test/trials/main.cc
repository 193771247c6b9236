// psd-trials: small training runs against a running daemon, without LibTorch, for tests and comparisons of
// policies (scripts/bench_policies). Prints one JSON object.

#include <cstdio>
#include <numeric>

#include <CLI/CLI.hpp>

#include "test/trials/together.h"
#include "trainer/dataset/mnist.h"

namespace psd::trials {
namespace {

constexpr const char* kAbout =
    "Trains a small network on handwritten digits against a running psd, as several trainers at once, as "
    "trainers of "
    "which some push garbage, or with gradients of a fixed age. Only for tests and comparisons of policies.";

Status load(Setting& setting, std::unique_ptr<Dataset>& train, const std::string& folder, uint64_t samples) {
  PSD_ASSIGN_OR_RETURN(train, openMnist(folder, Split::train));
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> test, openMnist(folder, Split::test));
  setting.train = train.get();
  setting.trainSamples = std::min<uint64_t>(samples, train->sampleCount());
  std::vector<uint32_t> all(std::min<size_t>(test->sampleCount(), 2000));
  std::iota(all.begin(), all.end(), 0u);
  return test->fill(all, setting.test);
}

int run(int argc, char** argv) {
  Setting setting;
  Barrier together;
  Delayed delayed;
  std::string folder;
  uint64_t samples = 60'000;
  CLI::App app(kAbout, "psd-trials");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--server", setting.server, "the daemon's address")->required();
  app.add_option("--data", folder, "the folder of an MNIST set")->required();
  app.add_option("--samples", samples, "of the training set, at most")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--batch-size", setting.batchSize)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--hidden", setting.hidden, "units of the network's hidden layer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", setting.seed)->capture_default_str();

  CLI::App* several =
      app.add_subcommand("together", "several trainers at once, each a thread with its own connection");
  several->add_option("--trainers", together.trainers)->capture_default_str()->check(CLI::PositiveNumber);
  several->add_option("--steps", together.steps, "of each trainer, at most")->capture_default_str();
  several->add_option("--seconds", together.seconds, "at most")->capture_default_str();
  several->add_option("--accuracy", together.accuracy, "end when the test accuracy has come so far, 0 … 1");
  several->add_option("--step-ms", together.stepMs, "sleep in each step")->capture_default_str();
  several->add_option("--slow-step-ms", together.slowStepMs, "sleep in each step of rank 0")
      ->capture_default_str();
  several->add_flag("--auto-batch", together.autoBatch,
                    "the daemon assigns the samples, to each trainer as many as match its speed");
  several
      ->add_option("--garbage", together.garbage,
                   "number of the last ranks that push noise instead of gradients")
      ->capture_default_str();
  several->add_option("--garbage-scale", together.garbageScale, "its deviation")->capture_default_str();
  several->add_option("--evaluate-ms", together.evaluateMs, "between two looks at the accuracy")
      ->capture_default_str();

  CLI::App* late = app.add_subcommand("delayed", "gradients of parameters as they were some updates ago");
  late->add_option("--delay", delayed.delay, "updates")->capture_default_str();
  late->add_option("--steps", delayed.steps, "in all")->capture_default_str();
  late->add_option("--evaluate-every", delayed.evaluateEvery, "steps")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  std::unique_ptr<Dataset> train;
  Result<nlohmann::ordered_json> report = nlohmann::ordered_json();
  if (Status loaded = load(setting, train, folder, samples); !loaded.ok()) {
    report = loaded.error();
  } else {
    report = several->parsed() ? trainTogether(setting, together) : trainDelayed(setting, delayed);
  }
  if (!report.ok()) {
    std::fprintf(stderr, "psd-trials: %s\n", report.message().c_str());
    return 1;
  }
  std::printf("%s\n", report->dump().c_str());
  return 0;
}

}  // namespace
}  // namespace psd::trials

int main(int argc, char** argv) { return psd::trials::run(argc, argv); }
