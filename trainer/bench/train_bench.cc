#include "trainer/bench/train_bench.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/types/stopwatch.h"

namespace psd {
namespace {

constexpr uint64_t kBlockSteps = 5;
constexpr float kLearningRate = 0.01f;  // of the steps without a daemon

double medianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Training without a daemon. Owned by one thread.
class LocalTraining {
 public:
  LocalTraining(Model& model, const Dataset& data, uint32_t batchSize)
      : model_(model), data_(data), indices_(std::min<size_t>(batchSize, data.sampleCount())) {
    std::iota(indices_.begin(), indices_.end(), 0);
  }

  Status step() {
    for (uint32_t& index : indices_) {
      index = static_cast<uint32_t>((index + indices_.size()) % data_.sampleCount());
    }
    PSD_RETURN_IF_ERROR(data_.fill(indices_, batch_));
    PSD_RETURN_IF_ERROR(model_.computeGradients(batch_).status());
    const std::span<float> weights = model_.parameters();
    const std::span<const float> gradients = model_.gradients();
    for (size_t i = 0; i < weights.size(); ++i) weights[i] -= kLearningRate * gradients[i];
    return {};
  }

 private:
  Model& model_;
  const Dataset& data_;
  std::vector<uint32_t> indices_;  // of the last batch
  Batch batch_;
};

/// Times the loop's steps and runs a block of steps without the daemon between two blocks. Owned by the
/// loop's thread.
class Alternation : public LoopObserver {
 public:
  Alternation(LocalTraining& local, double seconds) : local_(local), seconds_(seconds) {}

  void onStep(const StepReport& report) override {
    if (counts()) {
      server_.push_back(sinceMark_.seconds());
      pull_.push_back(report.pullSeconds);
      compute_.push_back(report.computeSeconds);
      push_.push_back(report.pushSeconds);
    }
    if (++inBlock_ == kBlockSteps) {
      runLocalBlock();
      ++blocks_;
      if (blocks_ == 1) sinceBegin_ = {};
      inBlock_ = 0;
    }
    sinceMark_ = {};
  }

  bool ended() const { return !status_.ok() || (blocks_ > 1 && sinceBegin_.seconds() >= seconds_); }
  const Status& status() const { return status_; }

  TrainBenchReport report() const {
    TrainBenchReport out;
    out.steps = server_.size();
    out.server = medianOf(server_);
    out.alone = medianOf(alone_);
    out.pull = medianOf(pull_);
    out.compute = medianOf(compute_);
    out.push = medianOf(push_);
    return out;
  }

 private:
  bool counts() const { return blocks_ > 0 && inBlock_ > 0; }

  void runLocalBlock() {
    for (inBlock_ = 0; inBlock_ < kBlockSteps && status_.ok(); ++inBlock_) {
      const Stopwatch stopwatch;
      status_ = local_.step();
      if (counts()) alone_.push_back(stopwatch.seconds());
    }
  }

  LocalTraining& local_;
  const double seconds_;
  uint64_t blocks_ = 0;   // finished, of each kind
  uint64_t inBlock_ = 0;  // finished steps of the current block
  Stopwatch sinceBegin_;  // since the end of the warm-up
  Stopwatch sinceMark_;   // since the end of the last step, or of the block without the daemon
  Status status_;
  std::vector<double> server_, alone_, pull_, compute_, push_;  // seconds of each counted step
};

}  // namespace

Result<TrainBenchReport> runTrainBench(Client& client, Model& withServer, Model& alone, const Dataset& data,
                                       const LoopOptions& loop, double seconds) {
  LoopOptions endless = loop;
  endless.steps = UINT64_MAX;
  // Other names, so that the daemon cannot take this for a real model.
  endless.presentedAs = withServer.spec();
  for (TensorSpec& tensor : endless.presentedAs->tensors) tensor.name = "bench." + tensor.name;
  TrainingLoop training(client, withServer, data, endless);
  PSD_ASSIGN_OR_RETURN(const JoinInfo info, training.join());
  LocalTraining local(alone, data, loop.batchSize);
  Alternation alternation(local, seconds);
  PSD_RETURN_IF_ERROR(training.run({&alternation}, [&] { return alternation.ended(); }).status());
  PSD_RETURN_IF_ERROR(alternation.status());
  PSD_RETURN_IF_ERROR(client.leave());
  TrainBenchReport report = alternation.report();
  report.policy = info.policy;
  report.device = info.device;
  return report;
}

std::string formatText(const TrainBenchReport& report) {
  return fmt::format(
      "train  policy {}, {}, {} steps\n"
      "  with the server      {:.3f} ms median (pull {:.3f}, compute {:.3f}, push {:.3f})\n"
      "  without              {:.3f} ms median\n"
      "  ratio                {:.3f}",
      report.policy, report.device, report.steps, report.server * 1e3, report.pull * 1e3,
      report.compute * 1e3, report.push * 1e3, report.alone * 1e3, report.ratio());
}

std::string formatJson(const TrainBenchReport& report) {
  return nlohmann::ordered_json{
      {"operation", "train"},        {"policy", report.policy},          {"device", report.device},
      {"steps", report.steps},       {"server_median_s", report.server}, {"local_median_s", report.alone},
      {"ratio", report.ratio()},     {"pull_median_s", report.pull},     {"compute_median_s", report.compute},
      {"push_median_s", report.push}}
      .dump();
}

}  // namespace psd
