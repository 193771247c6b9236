// The order of an executor's calls, its configuration, and what a trainer computes from its outputs.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <capnp/message.h>

#include "schema/executor.capnp.h"
#include "test/support/catch.h"
#include "trainer/executor/call_queue.h"
#include "trainer/executor/executor_config.h"
#include "trainer/executor/executor_exposition.h"
#include "trainer/executor/float_arrays.h"
#include "trainer/executor/model_devices.h"
#include "trainer/executor/oldest_versions.h"
#include "trainer/executor/remote/loss_list.h"
#include "trainer/executor/remote/tensor_wire.h"
#include "trainer/executor/stages/execution.h"
#include "trainer/model/device.h"
#include "trainer/model/model_list.h"
#include "trainer/task/named_tensor.h"

namespace psd::executor_unit_test {
namespace {

using std::chrono::milliseconds;
using Queue = CallQueue<std::string>;
using Json = nlohmann::ordered_json;

const Queue::Clock::time_point kStart{};

void add(Queue& queue, std::string name, int8_t priority, CallKind kind, int64_t at = 0) {
  queue.add({priority, kind, kStart + milliseconds(at), 0, std::move(name)});
}

/// The names in the order in which the calls are taken at that time; empties the queue.
std::string takeAll(Queue& queue, int64_t at = 0) {
  std::string order;
  for (const auto* call : queue.inOrder(kStart + milliseconds(at))) order += call->payload;
  std::string taken;
  while (!queue.empty()) taken += queue.take(kStart + milliseconds(at)).payload;
  CHECK(taken == order);  // the status shows the actual order
  return taken;
}

TEST_CASE("A step of several contexts is from the oldest parameters of each shard, if all saw the same cut") {
  const std::vector<Version> one{Version{5}, Version{2}}, two{Version{4}, Version{3}}, moved{Version{1}};
  const auto oldest = oldestOf({&one, &two});
  PSD_REQUIRE_OK(oldest);
  CHECK(*oldest == std::vector<Version>{Version{4}, Version{2}});
  for (const auto& all : {std::vector{&one, &moved}, std::vector{&moved, &one}}) {
    const Status refused = oldestOf(all).status();
    REQUIRE_FALSE(refused.ok());
    CHECK(isRetryable(refused.error().code));
  }
}

TEST_CASE("Calls are taken by priority, then backward before forward, then in order of arrival") {
  Queue queue(milliseconds(100));
  add(queue, "a", 0, CallKind::forward);
  add(queue, "b", 0, CallKind::backward);
  add(queue, "c", 1, CallKind::forward);
  add(queue, "d", 0, CallKind::forward);
  add(queue, "e", -1, CallKind::backward);
  add(queue, "f", 0, CallKind::backward);
  CHECK(takeAll(queue) == "cbfade");
}

TEST_CASE("A waiting call rises by one for each `age`, so that none starves") {
  Queue queue(milliseconds(100));
  add(queue, "old", -2, CallKind::forward, 0);
  add(queue, "new", 0, CallKind::backward, 250);
  CHECK(takeAll(queue, 299) == "newold");  // as urgent by now, but a forward pass
  add(queue, "old", -2, CallKind::forward, 0);
  add(queue, "new", 0, CallKind::backward, 250);
  CHECK(takeAll(queue, 300) == "oldnew");
  // A continuous stream of the most urgent calls does not starve the least urgent one.
  add(queue, "low", -128, CallKind::forward, 0);
  int64_t now = 0;
  for (;; now += 100) {
    add(queue, "high", 127, CallKind::backward, now);
    if (queue.take(kStart + milliseconds(now)).payload == "low") break;
    REQUIRE(now < 100 * 1000);
  }
  CHECK(now == 100 * 256);
}

Result<ExecutorConfig> read(Json json) { return readExecutorConfig(json); }

TEST_CASE("An executor's configuration has defaults for all keys, and is complete once it was read") {
  Json json = Json::object();
  const auto config = readExecutorConfig(json);
  PSD_REQUIRE_OK(config);
  CHECK(config->servers == std::vector<std::string>{"tcp://localhost:5500"});
  CHECK(config->listen.front().toString() == "tcp://localhost:5600");
  CHECK(config->weights == WeightsMode::stashed);
  CHECK(json["module"] == "mnist_cnn");
  CHECK(json["device"] == "auto");
  CHECK(json["queue"] == 256);
  CHECK(config->http.listen.empty());
  CHECK(json["http"]["timeout_ms"] == 15'000);
  PSD_REQUIRE_OK(read(json));
  const auto one = read({{"server", "unix:///a.sock"}, {"weights", "live"}, {"exclusive", true}});
  PSD_REQUIRE_OK(one);
  CHECK(one->servers == std::vector<std::string>{"unix:///a.sock"});
  CHECK(one->weights == WeightsMode::live);
  CHECK(one->exclusive);
  const auto tls = read({{"listen", {"tls://*:5600"}},
                         {"tls", {{"certificate", "a.pem"}, {"key", "a.key"}, {"client_ca", "ca.pem"}}}});
  PSD_REQUIRE_OK(tls);
  CHECK(tls->tls->requireClient);
  CHECK(read({{"server", {"unix:///a.sock", "tcp://b:1"}}})->servers.size() == 2);
}

/// The devices of a configuration's stages on a machine with `cudaDevices` CUDA devices; else the error.
std::string stageDevicesOn(int cudaDevices, Json json) {
  const auto config = read(std::move(json));
  PSD_REQUIRE_OK(config);
  std::string note;
  const auto placed = placeModel(
      *config,
      [cudaDevices](std::string_view request, std::string&) { return selectDevice(request, 0, cudaDevices); },
      note);
  if (!placed.ok()) {
    CHECK(placed.error().code == ErrorCode::invalidArgument);
    return placed.message();
  }
  std::string places = placed->device.toString();
  for (const StageBegin& stage : placed->stages) places += ", " + stage.layer + " " + stage.device.toString();
  return places;
}

TEST_CASE("Each stage is on its configured device, or its module's, and auto is the CPU for live weights") {
  const Json second = {{"layer", "fc2"}, {"device", "cuda:1"}};
  const Json stages = Json::array({"fc1", second});
  CHECK(stageDevicesOn(0, Json::object()) == "cpu");
  CHECK(stageDevicesOn(2, Json::object()) == "cuda:0");
  CHECK(stageDevicesOn(2, {{"weights", "live"}}) == "cpu");
  CHECK(stageDevicesOn(2, {{"stages", stages}}) == "cuda:0, fc1 cuda:0, fc2 cuda:1");
  CHECK(stageDevicesOn(2, {{"device", "cpu"}, {"stages", stages}}) == "cpu, fc1 cpu, fc2 cuda:1");
  CHECK(stageDevicesOn(0, {{"device", "cuda:0"}}) ==
        "device: cuda:0 is not there; this machine shows no CUDA device");
  CHECK(stageDevicesOn(1, {{"stages", stages}}) ==
        "stages[1].device: cuda:1 is not there; this machine shows 1 CUDA device(s), from cuda:0");

  Json json = {{"device", "cpu"}, {"stages", stages}};
  PSD_REQUIRE_OK(readExecutorConfig(json));
  CHECK(json["stages"] == Json::array({Json{{"layer", "fc1"}, {"device", "cpu"}}, second}));
}

TEST_CASE("A wrong configuration of an executor is rejected by one line with the key") {
  const auto [json, words] = GENERATE(table<Json, std::string>({
      {Json{{"wokers", 2}}, "wokers: unknown key; did you mean 'workers'?"},
      {Json{{"workers", 0}}, "workers"},
      {Json{{"listen", {"tcp://0.0.0.0:5600"}}}, "listen[0]: tcp://0.0.0.0:5600 lets other machines in"},
      {Json{{"listen", {"tcp://*:5600"}}}, "lets other machines in"},
      {Json{{"listen", {"tls://localhost:5600"}}}, "listen[0]: tls:// needs `tls`"},
      {Json{{"tls", {{"certificate", "a.pem"}, {"key", "a.key"}}}}, "tls.client_ca: is needed"},
      {Json{{"listen", Json::array()}}, "listen"},
      {Json{{"http", {{"listen", {"tcp://0.0.0.0:5680"}}}}},
       "http.listen[0]: tcp://0.0.0.0:5680 lets other machines in"},
      {Json{{"http", {{"listen", {"tls://*:5680"}}}}}, "http.listen[0]: tls:// needs `tls`"},
      {Json{{"micro_batches", 2}}, "micro_batches: requires `stages`"},
      {Json{{"stages", {"fc2"}}, {"micro_batches", 0}}, "micro_batches"},
      {Json{{"device", "gpu"}}, "device: 'gpu' is not a device; expected auto, cpu or cuda:N"},
      {Json{{"device", 0}}, "device: must be a string"},
      {Json{{"stages", "fc2"}}, "stages: must be a list"},
      {Json{{"stages", {5}}},
       "stages[0]: must be a layer's name, or an object with `layer` and `device`, not 5"},
      {Json{{"stages", Json::array({"fc1", Json{{"layer", "fc2"}, {"device", "cuda"}}})}},
       "stages[1].device: 'cuda' is not a device"},
      {Json{{"stages", Json::array({Json{{"device", "cpu"}}})}}, "stages[0].layer: is needed"},
      {Json{{"stages", Json::array({Json{{"layer", "fc2"}, {"devise", "cpu"}}})}},
       "stages[0].devise: unknown key"},
      {Json{{"weights", "live"}, {"device", "cuda:1"}},
       "device: cuda:1 cannot be combined with \"weights\": \"live\""},
      {Json{{"weights", "live"}, {"stages", Json::array({Json{{"layer", "fc2"}, {"device", "cuda:0"}}})}},
       "stages[0].device: cuda:0 cannot be combined with \"weights\": \"live\""},
      {Json{{"http", {{"timeout", 5}}}}, "http.timeout: unknown key"},
      {Json{{"server", "localhost"}}, "server"},
      {Json{{"server", {"tcp://a:1", "b"}}}, "server[1]"},
      {Json{{"weights", "lively"}}, "weights"},
      {Json{{"memory_bytes", 12}}, "memory_bytes"},
  }));
  const auto config = read(json);
  REQUIRE(!config.ok());
  INFO(config.message());
  CHECK(config.error().code == ErrorCode::invalidArgument);
  CHECK(config.message().find(words) != std::string::npos);
}

TEST_CASE("An executor's exposition for Prometheus has a help line for each metric, and escapes labels") {
  ExecutorStatus status;
  status.module = "a\"b\\c";
  status.weights = "live";
  status.devices = {"cuda:0", "cpu"};
  status.trainers.push_back(
      {.rank = 3, .peer = "p", .contexts = 2, .forwards = 7, .steps = 5, .staleness = 1, .rows = 40});
  // Rank 3's previous connection still exists.
  status.trainers.push_back(
      {.rank = 3, .peer = "q", .contexts = 1, .forwards = 2, .steps = 2, .staleness = 0, .rows = 2});
  status.trainers.push_back({.joined = false, .peer = "r"});  // the daemon assigns its rank
  status.passes.waiting.push_back({{.kind = CallKind::backward}, 0.25});
  auto& backward = status.passes.kinds[1];
  backward.waited.add(0.0007);
  backward.waited.add(11);
  const std::string text = exposition(status);
  const auto has = [&text](const std::string& line) {
    return text.find("\n" + line + "\n") != std::string::npos;
  };
  CHECK(has(R"(psd_executor_build_info{version=")" PSD_VERSION
            R"(",module="a\"b\\c",weights="live",devices="cuda:0,cpu"} 1)"));
  CHECK(has(R"(psd_executor_queue{call="forward"} 0)"));
  CHECK(has(R"(psd_executor_queue{call="backward"} 1)"));
  CHECK(has(R"(psd_executor_queue_oldest_seconds{call="backward"} 0.25)"));
  CHECK(has(R"(psd_executor_waited_seconds_bucket{call="backward",le="0.0005"} 0)"));
  CHECK(has(R"(psd_executor_waited_seconds_bucket{call="backward",le="0.001"} 1)"));
  CHECK(has(R"(psd_executor_waited_seconds_bucket{call="backward",le="10"} 1)"));
  CHECK(has(R"(psd_executor_waited_seconds_bucket{call="backward",le="+Inf"} 2)"));
  CHECK(has(R"(psd_executor_waited_seconds_count{call="backward"} 2)"));
  CHECK(has(R"(psd_executor_trainer_steps_total{rank="3"} 7)"));
  CHECK(has(R"(psd_executor_trainer_staleness{rank="3"} 1)"));
  CHECK(has(R"(psd_executor_trainer_rows{rank="3"} 42)"));
  CHECK(has("# TYPE psd_executor_trainer_steps_total counter"));
  CHECK(text.find(R"({rank="0"})") == std::string::npos);
}

TEST_CASE("Unreferenced arrays free their bytes, though their versions are remembered") {
  constexpr uint64_t kElements = 1024, kBytes = kElements * sizeof(float);
  const auto budget = ByteBudget::make(4 * kBytes);
  FloatArrays arrays(kElements, budget);
  std::vector<Weights> held;
  for (uint64_t version = 0; version < 4; version++) {
    auto fresh = arrays.take();
    PSD_REQUIRE_OK(fresh);
    std::fill_n(fresh->get(), kElements, static_cast<float>(version));
    held.push_back(arrays.share({Version{version}}, *std::move(fresh)));
  }
  const auto more = arrays.take();
  REQUIRE(!more.ok());
  CHECK(more.error().code == ErrorCode::overloaded);
  held.clear();  // the newest is kept
  for (int times = 0; times < 2; times++) {
    std::vector<std::shared_ptr<float>> again;
    for (int i = 0; i < 3; i++) {
      auto array = arrays.take();
      PSD_REQUIRE_OK(array);
      again.push_back(*std::move(array));
    }
    CHECK(!arrays.take().ok());
  }
  CHECK(budget->used() == 4 * kBytes);  // arrays kept for reuse count
  PSD_REQUIRE_OK(arrays.lease(3 * kBytes, "inputs"));
  CHECK(budget->used() == kBytes);
  const auto never = arrays.lease(4 * kBytes + 1, "inputs");
  REQUIRE(!never.ok());
  CHECK(never.error().code == ErrorCode::invalidArgument);
  const auto tooMuch = arrays.lease(3 * kBytes + 1, "inputs");
  REQUIRE(!tooMuch.ok());
  CHECK(tooMuch.message().find("inputs take another 12") != std::string::npos);
}

TEST_CASE("The models listed as executable are those of the list that have outputs") {
  std::vector<std::string_view> executable;
  for (const ModelEntry& entry : modelList()) {
    const auto choice = chooseModel(entry.name);
    PSD_REQUIRE_OK(choice);
    if (makeExecutionModel(*choice, 1).ok()) executable.push_back(entry.name);
  }
  std::ranges::sort(executable);
  CHECK(std::ranges::equal(executable, kExecutableModels));
}

NamedTensor scores(std::vector<uint64_t> shape, const std::vector<float>& values) {
  NamedTensor tensor{"scores", ElementType::f32, std::move(shape),
                     std::vector<std::byte>(values.size() * sizeof(float))};
  std::ranges::copy(values, tensor.values<float>().begin());
  return tensor;
}

NamedTensor labelled(const std::vector<int64_t>& values) {
  NamedTensor tensor{
      "label", ElementType::i64, {values.size()}, std::vector<std::byte>(values.size() * sizeof(int64_t))};
  std::ranges::copy(values, tensor.values<int64_t>().begin());
  return tensor;
}

NamedTensor named(std::string name, std::vector<float> values) {
  NamedTensor tensor = scores({values.size()}, values);
  tensor.name = std::move(name);
  return tensor;
}

TEST_CASE("Cross-entropy and its gradient are those of the softmax, of logits and of log-probabilities") {
  const NamedTensor labels = labelled({2, 0});
  const std::vector<NamedTensor> logits{scores({2, 3}, {1, 2, 3, 1000, -1000, 0})};
  const auto result = computeLoss({}, logits, labels);
  PSD_REQUIRE_OK(result);
  const double sum = std::exp(1) + std::exp(2) + std::exp(3);
  CHECK(std::abs(result->loss - (std::log(sum) - 3) / 2) < 1e-12);
  const auto gradient = result->gradients.at(0).values<float>();
  CHECK(result->gradients.at(0).name == "scores");
  CHECK(std::abs(gradient[0] - std::exp(1) / sum / 2) < 1e-7);
  CHECK(std::abs(gradient[2] - (std::exp(3) / sum - 1) / 2) < 1e-7);
  CHECK(gradient[3] == 0);
  const float off = static_cast<float>(std::log(sum));
  const auto shifted =
      computeLoss({}, {scores({2, 3}, {1 - off, 2 - off, 3 - off, 0, -2000, -1000})}, labels);
  PSD_REQUIRE_OK(shifted);
  CHECK(std::abs(shifted->loss - result->loss) < 1e-6);

  const auto score = scoreOutputs({}, logits, labelled({2, 2}));
  PSD_REQUIRE_OK(score);
  CHECK(score->value("accuracy") == 0.5);
  CHECK(std::abs(score->loss() - ((std::log(sum) - 3) + 1000) / 2) < 1e-6);
}

TEST_CASE("Cross-entropy rejects outputs that are not scores of classes") {
  const auto refused = [labels = labelled({0, 1})](const std::vector<NamedTensor>& outputs) {
    return !computeLoss({}, outputs, labels).ok();
  };
  CHECK(refused({}));
  CHECK(refused({scores({3, 2}, {1, 2, 3, 4, 5, 6})}));
  CHECK(refused({scores({2}, {1, 2})}));
  CHECK(refused({scores({2, 1}, {1, 2})}));  // label 1 of one class
  CHECK(refused({scores({2, 2}, {1, 2, 3, 4}), scores({2, 2}, {1, 2, 3, 4})}));
  CHECK(!computeLoss({}, {scores({2, 2}, {1, 2, 3, 4})}, labelled({0, -1})).ok());
  const auto nan =
      computeLoss({}, {scores({2, 2}, {1, 2, std::numeric_limits<float>::quiet_NaN(), 4})}, labelled({0, 1}));
  REQUIRE(!nan.ok());
  CHECK(nan.error().code == ErrorCode::nonFinite);
}

TEST_CASE("The squared error, its gradient and its root are those of the numbers, with a penalty added") {
  const LossSpec loss{LossKind::squaredError, "guess", {"rating", ElementType::f32, {}, 0}, "penalty"};
  const std::vector<NamedTensor> outputs{named("guess", {3, 1}), named("penalty", {0.5f, 0.25f})};
  const NamedTensor truth = named("rating", {1, 2});
  const auto result = computeLoss(loss, outputs, truth);
  PSD_REQUIRE_OK(result);
  CHECK(result->loss == (4 + 1) / 2.0 + 0.75 / 2);
  REQUIRE(result->gradients.size() == 2);
  CHECK(result->gradients[0].name == "guess");
  CHECK(result->gradients[0].values<float>()[0] == 2);
  CHECK(result->gradients[0].values<float>()[1] == -1);
  CHECK(result->gradients[1].name == "penalty");
  CHECK(result->gradients[1].values<float>()[1] == 0.5f);
  const auto score = scoreOutputs(loss, outputs, truth);
  PSD_REQUIRE_OK(score);
  CHECK(score->loss() == result->loss);
  CHECK(score->value("rmse") == std::sqrt(2.5));

  CHECK(!computeLoss(loss, {outputs[0]}, truth).ok());  // the penalty is missing
  CHECK(!computeLoss(loss, {outputs[0], named("penalty", {1})}, truth).ok());
  CHECK(!computeLoss(loss, {named("guess", {1, 2, 3}), outputs[1]}, truth).ok());
  CHECK(!computeLoss(loss, outputs, labelled({1, 2})).ok());
}

TEST_CASE("The cross-entropy of 0 and 1, its gradient and the AUC are those of the odds, at any magnitude") {
  const LossSpec loss{LossKind::binaryCrossEntropy, "logits", {"label", ElementType::i64, {}, 2}, ""};
  const std::vector<NamedTensor> outputs{named("logits", {0.5f, -1000, 1000, 0})};
  const auto result = computeLoss(loss, outputs, labelled({1, 0, 0, 1}));
  PSD_REQUIRE_OK(result);
  const double first = std::log1p(std::exp(-0.5));
  CHECK(std::abs(result->loss - (first + 0 + 1000 + std::log(2)) / 4) < 1e-9);
  const auto gradient = result->gradients.at(0).values<float>();
  CHECK(std::abs(gradient[0] - (1 / (1 + std::exp(-0.5)) - 1) / 4) < 1e-7);
  CHECK(gradient[1] == 0);
  CHECK(gradient[2] == 0.25f);
  CHECK(gradient[3] == -0.125f);
  const auto score = scoreOutputs(loss, outputs, labelled({1, 0, 0, 1}));
  PSD_REQUIRE_OK(score);
  CHECK(score->value("auc") == 0.5);  // above one of two
  CHECK(!computeLoss(loss, outputs, labelled({1, 0, 0, 2})).ok());
  CHECK(!computeLoss(loss, {named("scores", {1, 2, 3, 4})}, labelled({1, 0, 0, 1})).ok());
}

TEST_CASE("The hinge loss, its gradient and accuracy are those of the margins") {
  const LossSpec loss{LossKind::hinge, "margin", {"label", ElementType::i64, {}, 2}, ""};
  const std::vector<NamedTensor> outputs{named("margin", {2, 0.5f, -0.25f, -3})};
  const NamedTensor labels = labelled({1, 1, 1, 0});
  const auto result = computeLoss(loss, outputs, labels);
  PSD_REQUIRE_OK(result);
  CHECK(result->loss == (0 + 0.5 + 1.25 + 0) / 4);
  const auto gradient = result->gradients.at(0).values<float>();
  CHECK(gradient[0] == 0);
  CHECK(gradient[1] == -0.25f);
  CHECK(gradient[2] == -0.25f);
  CHECK(gradient[3] == 0);
  const auto score = scoreOutputs(loss, outputs, labels);
  PSD_REQUIRE_OK(score);
  CHECK(score->loss() == result->loss);
  CHECK(score->value("accuracy") == 0.75);
  CHECK(computeLoss(loss, {named("margin", {0.5f})}, labelled({0}))->gradients.at(0).values<float>()[0] == 1);
  CHECK(!computeLoss(loss, outputs, labelled({1, 1, 2, 0})).ok());
}

TEST_CASE(
    "The loss of a sequence is the mean over all tokens except the first of each, which is not predicted") {
  const LossSpec loss{LossKind::nextToken, "logits", {"tokens", ElementType::i64, {ColumnSpec::kAny}, 3}, ""};
  NamedTensor logits = named("logits", {1, 0, 0, /**/ 0, 2, 0, /**/ 0, 0, 0, /**/ 0, 0, 3});
  logits.shape = {2, 2, 3};
  NamedTensor tokens = labelled({2, 0, 1, /**/ 1, 1, 2});
  tokens.name = "tokens";
  tokens.shape = {2, 3};
  const double e = std::exp(1.0);
  // Of softmax: log(e + 2) − 1, log(e² + 2) − 2, log 3, log(e³ + 2) − 3.
  const double expected =
      (std::log(e + 2) - 1 + std::log(e * e + 2) - 2 + std::log(3.0) + std::log(e * e * e + 2) - 3) / 4;
  const auto result = computeLoss(loss, {logits}, tokens);
  PSD_REQUIRE_OK(result);
  CHECK(result->loss == Approx(expected));
  const NamedTensor& gradient = result->gradients.at(0);
  CHECK(gradient.shape == logits.shape);
  CHECK(gradient.values<float>()[0] == Approx((e / (e + 2) - 1) / 4));
  CHECK(gradient.values<float>()[1] == Approx(1 / (e + 2) / 4));
  CHECK(gradient.values<float>()[7] == Approx((1 / 3.0 - 1) / 4));
  const auto score = scoreOutputs(loss, {logits}, tokens);
  PSD_REQUIRE_OK(score);
  CHECK(score->samples == 2);
  CHECK(score->loss() == Approx(expected));
  CHECK(score->value("perplexity") == Approx(std::exp(expected)));
  CHECK(score->value("accuracy") == 0.75);  // of three equal scores the first is taken
  tokens.values<int64_t>()[5] = 3;
  CHECK(!computeLoss(loss, {logits}, tokens).ok());
  tokens.shape = {3, 2};
  CHECK(!computeLoss(loss, {logits}, tokens).ok());
  tokens.shape = {6, 1};
  CHECK_FALSE(computeLoss(loss, {logits}, tokens).ok());
}

TEST_CASE("A loss compares with the columns its kind allows, and states what it is of besides a penalty") {
  const ColumnSpec number{"y", ElementType::f32, {}, 0}, label{"y", ElementType::i64, {}, 2},
      sequence{"y", ElementType::i64, {ColumnSpec::kAny}, 2};
  for (const LossEntry& entry : lossList()) {
    const bool ofNumbers = entry.kind == LossKind::squaredError,
               ofSequences = entry.kind == LossKind::nextToken;
    const ColumnSpec& right = ofNumbers ? number : ofSequences ? sequence : label;
    for (const ColumnSpec& target : {number, label, sequence}) {
      CHECK(checkLoss({entry.kind, "", target, ""}).ok() == (target == right));
    }
    CHECK(!checkLoss({entry.kind, "", {"y", ElementType::i64, {2, 2}, 2}, ""}).ok());
  }
  CHECK(!checkLoss({LossKind::binaryCrossEntropy, "", {"y", ElementType::i64, {}, 3}, ""}).ok());
  CHECK(!checkLoss({LossKind::crossEntropy, "", label, "penalty"}).ok());
  CHECK(!checkLoss({LossKind::crossEntropy, "penalty", label, "penalty"}).ok());
}

TEST_CASE("A loss survives the wire, an absent one is the default, one of a newer version is rejected") {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schema::Loss>();
  const auto read = [&] { return wire::readLoss(out.asReader()); };
  CHECK(*read() == LossSpec());
  const LossSpec loss{LossKind::squaredError, "guess", {"rating", ElementType::f32, {}, 0}, "penalty"};
  wire::writeLoss(loss, out);
  CHECK(*read() == loss);
  out.setKind(static_cast<schema::LossKind>(kLossKinds.size()));
  PSD_REQUIRE_OK(read());
  CHECK(!*read());
  out.getTarget().setName("");
  out.setKind(schema::LossKind::CROSS_ENTROPY);
  CHECK(read().status().error().code == ErrorCode::invalidArgument);
}

TEST_CASE("Inputs are the columns, each once, of the same samples and in range") {
  const std::vector<ColumnSpec> columns{{"x", ElementType::f32, {2}, 0}, {"id", ElementType::i64, {}, 10}};
  const auto ids = [](const std::vector<int64_t>& values) {
    NamedTensor tensor{
        "id", ElementType::i64, {values.size()}, std::vector<std::byte>(values.size() * sizeof(int64_t))};
    std::ranges::copy(values, tensor.values<int64_t>().begin());
    return tensor;
  };
  NamedTensor x = scores({2, 2}, {1, 2, 3, 4});
  x.name = "x";
  PSD_REQUIRE_OK(checkInputs(std::vector<NamedTensor>{ids({0, 9}), x}, columns));
  const auto refused = [&](const std::vector<NamedTensor>& inputs) {
    return !checkInputs(inputs, columns).ok();
  };
  CHECK(refused({x}));
  CHECK(refused({x, x}));
  CHECK(refused({x, ids({0, 9}), ids({0, 9})}));
  CHECK(refused({x, ids({0, 10})}));
  CHECK(refused({x, ids({0, -1})}));
  CHECK(refused({x, ids({0, 1, 2})}));
  CHECK(refused({x, ids({})}));
  CHECK(!tensorBytes(ElementType::f32, std::vector<uint64_t>{0, uint64_t{1} << 62}).ok());
  CHECK(!tensorBytes(ElementType::f64, std::vector<uint64_t>{uint64_t{1} << 32, uint64_t{1} << 32}).ok());
  CHECK(*tensorBytes(ElementType::f64, std::vector<uint64_t>{3, 4}) == 96);
}

}  // namespace
}  // namespace psd::executor_unit_test
