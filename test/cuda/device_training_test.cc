// The training loop and the bench with their arrays on a CUDA device, and a daemon in another process with
// its shards on one.

#include <memory>
#include <string>
#include <vector>

#include "test/cuda/device_array.h"
#include "test/cuda/device_or_skip.h"
#include "test/integration/daemon_process.h"
#include "test/unit/trainer/model/softmax_model.h"
#include "trainer/bench/bench.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/eval/evaluate.h"
#include "trainer/loop/training_loop.h"

namespace psd::device_training_test {
namespace {

using namespace testing;
using Catch::Matchers::Contains;

/// Computes on the CPU, like the model that it wraps, with device arrays if the loop requests them. Owned by
/// one thread.
class DeviceModel final : public Model {
 public:
  SoftmaxModel inner;

  bool onDevice() const { return !parameters_.empty(); }

  const ModelSpec& spec() const override { return inner.spec(); }
  std::vector<ColumnSpec> inputs() const override { return inner.inputs(); }
  std::string device() const override { return "cuda:0"; }
  int cudaDevice() const override { return 0; }

  Status moveArraysToDevice() override {
    parameters_.push_back(std::make_unique<DeviceArray>(inner.parameters()));
    gradients_.push_back(std::make_unique<DeviceArray>(inner.gradients()));
    return {};
  }
  Result<std::span<const float>> onHost(std::span<const float> array) override {
    if (!onDevice()) return array;
    for (const auto* arrays : {&parameters_, &gradients_}) {
      for (const auto& each : *arrays) {
        if (each->span().data() != array.data()) continue;
        copy_ = each->values();
        return std::span<const float>(copy_);
      }
    }
    return Error{ErrorCode::internal, "no array of this model"};
  }

  std::span<float> parameters() override {
    return onDevice() ? parameters_.front()->span() : inner.parameters();
  }
  std::span<float> gradients() override {
    return onDevice() ? gradients_.front()->span() : inner.gradients();
  }
  Status reserve(uint32_t gradientArrays, bool spare) override {
    REQUIRE(onDevice());
    const std::vector<float> zeros(parameters().size());
    while (gradients_.size() < gradientArrays) gradients_.push_back(std::make_unique<DeviceArray>(zeros));
    if (spare) parameters_.push_back(std::make_unique<DeviceArray>(zeros));
    return {};
  }
  std::span<float> spareParameters() override {
    return parameters_.size() == 1 ? std::span<float>() : parameters_.back()->span();
  }
  void swapParameters() override { std::swap(parameters_.front(), parameters_.back()); }
  void rotateGradients() override {
    std::rotate(gradients_.begin(), gradients_.begin() + 1, gradients_.end());
  }

  Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal) override {
    download();
    const auto loss = inner.computeGradients(batch, {});
    gradients_.front()->set(inner.gradients());
    if (whenFinal) whenFinal(0, gradients().size());
    return loss;
  }
  Result<Score> score(const Batch& batch) override {
    download();
    return inner.score(batch);
  }

 private:
  void download() {
    if (onDevice()) std::ranges::copy(parameters_.front()->values(), inner.parameters().begin());
  }

  std::vector<std::unique_ptr<DeviceArray>> parameters_, gradients_;  // empty: those of `inner`
  std::vector<float> copy_;
};

/// The parameters of a model trained alone with a fresh daemon on the device.
struct Run {
  Result<TrainingSummary> summary = Error{ErrorCode::internal, "not run"};
  std::vector<float> values;
  Score score;
};

template <class AnyModel>
Run train(AnyModel& model, const LoopOptions& options, const std::string& policy = "hogwild") {
  deviceOrSkip();
  setenv("PSD_TEST_DEVICE", "cuda:0", 1);
  const TempDir folder;
  DaemonProcess daemon(folder);
  daemon.start({"policy.type=" + policy, "shards=3", R"(optimizer={"type":"sgd","lr":0.05})"});
  ClientOptions client;
  client.servers = {daemon.address()};
  client.chunkBytes = 4096;
  client.cudaDevice = model.cudaDevice();
  auto connected = Client::connect(client);
  PSD_REQUIRE_OK(connected);
  const auto data = makeSynthetic(400, Split::train, 1), test = makeSynthetic(400, Split::test, 1);
  Run run;
  TrainingLoop loop(**connected, model, *data, options);
  const auto info = loop.join();
  PSD_REQUIRE_OK(info);
  CHECK(info->pullTransport == (model.cudaDevice() < 0 ? "rpc" : "cuda"));
  run.summary = loop.run({}, [] { return false; });
  if (!run.summary.ok()) return run;
  Evaluation evaluation(model, *test);
  PSD_REQUIRE_OK(evaluation.pull(**connected));
  PSD_REQUIRE_OK((*connected)->leave());
  const auto values = model.onHost(model.parameters());
  PSD_REQUIRE_OK(values);
  run.values.assign(values->begin(), values->end());
  const auto score = evaluation.score();
  PSD_REQUIRE_OK(score);
  run.score = *score;
  return run;
}

LoopOptions epochs(uint64_t count) { return {{Rank{0}, 1}, 16, count, 0, 1}; }

TEST_CASE("a model with its arrays on a device comes to what it comes to with them in host memory") {
  for (const std::string policy : {"hogwild", "locked"}) {
    DeviceModel onDevice;
    SoftmaxModel plain;
    const Run run = train(onDevice, epochs(2), policy), expected = train(plain, epochs(2), policy);
    PSD_REQUIRE_OK(run.summary);
    PSD_REQUIRE_OK(expected.summary);
    CHECK(onDevice.onDevice());
    CHECK(run.values == expected.values);
    CHECK(run.summary->loss == expected.summary->loss);
    CHECK(run.score.value("accuracy") == expected.score.value("accuracy"));
  }
}

TEST_CASE("transfers between devices run beside the computation") {
  LoopOptions options = epochs(4);
  options.inflight = 2;
  options.prefetch = true;
  DeviceModel model;
  const Run run = train(model, options);
  PSD_REQUIRE_OK(run.summary);
  CHECK(run.score.value("accuracy") > 0.9);
}

TEST_CASE("a gradient on a device that is not finite is named") {
  DeviceModel model;
  model.inner.nanFromCall = 3;
  const Run run = train(model, epochs(1));
  REQUIRE_FALSE(run.summary.ok());
  CHECK_THAT(run.summary.message(), Contains("step 3") && Contains("bias holds nan at element 4"));
}

TEST_CASE("the bench moves values between devices, and says why it cannot") {
  deviceOrSkip();
  const auto bench = [](const std::string& devices, BenchOperation operation) {
    const TempDir folder;
    DaemonProcess daemon(folder);
    daemon.start({"policy.type=hogwild", "devices=" + devices});
    BenchOptions options{.operation = operation, .bytes = 1 << 20, .seconds = 0.05};
    options.client.servers = {daemon.address()};
    options.client.cudaDevice = 0;
    return runBench(options, Client::connect);
  };
  for (const auto operation : {BenchOperation::pull, BenchOperation::push, BenchOperation::pushpull}) {
    const auto report = bench(R"(["cuda:0"])", operation);
    PSD_REQUIRE_OK(report);
    CHECK(report->pullTransport == "cuda");
    CHECK(report->pushTransport == "cuda");
    CHECK(report->rounds > 0);
    CHECK(report->wireBytes == (operation == BenchOperation::pushpull ? 2u : 1u) << 20);
  }
  const auto refused = bench(R"(["cpu"])", BenchOperation::pull);
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.message(), Contains("--device cuda:0: the daemon shares no memory"));
}

}  // namespace
}  // namespace psd::device_training_test
