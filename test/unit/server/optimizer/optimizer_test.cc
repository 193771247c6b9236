#include <cmath>
#include <string>
#include <vector>

#include "server/optimizer/optimizer_config.h"
#include "test/support/catch.h"

namespace psd::optimizer_test {
namespace {

using nlohmann::ordered_json;

Result<Optimizer> parse(const std::string& json) {
  ObjectReader reader(ordered_json::parse(json));
  Optimizer optimizer = readOptimizer(reader);
  PSD_RETURN_IF_ERROR(reader.finish());
  return optimizer;
}

Optimizer mustParse(const std::string& json) {
  auto optimizer = parse(json);
  PSD_REQUIRE_OK(optimizer);
  return *optimizer;
}

std::string whyNot(const std::string& json) {
  const auto optimizer = parse(json);
  return optimizer.ok() ? "accepted" : optimizer.message();
}

/// One weight and its slots after an update per gradient.
struct Trace {
  float weight;
  std::vector<float> slots;
};

Trace run(const std::string& json, float weight, const std::vector<float>& gradients) {
  const Optimizer optimizer = mustParse(json);
  Trace trace{weight, {}};
  for (const Slot& slot : optimizer.slots()) trace.slots.push_back(slot.initialValue);
  trace.slots.push_back(-7.f);  // beyond the last slot: must not change
  uint64_t number = 0;
  for (const float gradient : gradients) {
    ++number;
    optimizer.visitStep({number, optimizer.learningRate(number)},
                        [&](const auto& step) { step(trace.weight, gradient, trace.slots.data()); });
  }
  CHECK(trace.slots.back() == -7.f);
  trace.slots.pop_back();
  return trace;
}

bool near(double value, double expected) {
  return std::abs(value - expected) <= 1e-6 * std::max(1.0, std::abs(expected));
}

TEST_CASE("sgd steps match manual calculation") {
  CHECK(near(run(R"({"type": "sgd", "lr": 0.1})", 1, {2, 4}).weight, 0.4));
  CHECK(near(run(R"({"lr": 0.1, "weight_decay": 0.5})", 2, {1}).weight, 1.8));
  CHECK(near(run(R"({"lr": 0.1, "momentum": 0.9})", 1, {1, 1}).weight, 0.71));
  // Dampening starts with the second update.
  CHECK(near(run(R"({"lr": 0.1, "momentum": 0.9, "dampening": 0.5})", 1, {1, 1}).weight, 0.76));
  CHECK(near(run(R"({"lr": 0.1, "momentum": 0.9, "nesterov": true})", 1, {1, 1}).weight, 0.539));
}

TEST_CASE("delayed_nesterov steps match manual calculation") {
  const std::string two = R"({"type": "delayed_nesterov", "lr": 0.5, "momentum": 0.5, "delay": 2})";
  // By half of each gradient; momentum changes at the second one, by the mean of both: 3.
  const Trace first = run(two, 1, {2});
  CHECK(near(first.weight, 1 - 0.5 * 1));
  CHECK(first.slots == std::vector<float>{0, 1});
  const Trace second = run(two, 1, {2, 4});
  CHECK(near(second.weight, 1 - 0.5 * (1 + 2 + 0.5 * 3)));
  CHECK(second.slots == std::vector<float>{3, 0});
  const Trace fourth = run(two, 1, {2, 4, 0, 2});
  CHECK(near(fourth.slots[0], 0.5 * 3 + 1));
  CHECK(near(fourth.weight, 1 - 0.5 * (1 + 2 + 0.5 * 3 + 0 + 1 + 0.5 * 2.5)));
}

TEST_CASE("delayed_nesterov with a delay of 1 is sgd with Nesterov's momentum, bit for bit") {
  std::vector<float> gradients;
  for (int i = 0; i < 50; i++) gradients.push_back(std::sin(static_cast<float>(i) * 1.7f));
  for (size_t count = 1; count <= gradients.size(); count++) {
    const std::vector<float> some(gradients.begin(), gradients.begin() + static_cast<ptrdiff_t>(count));
    const Trace delayed = run(R"({"type": "delayed_nesterov", "lr": 0.7, "momentum": 0.9})", 1, some);
    const Trace plain = run(R"({"type": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": true})", 1, some);
    REQUIRE(delayed.weight == plain.weight);
    REQUIRE(delayed.slots[0] == plain.slots[0]);
    REQUIRE(delayed.slots[1] == 0);
  }
  CHECK(whyNot(R"({"type": "delayed_nesterov", "delay": 1.5})") ==
        "delay: must be an integer: the number of updates per momentum update");
  CHECK(whyNot(R"({"type": "delayed_nesterov", "delay": 0})").find("delay: must be a number") == 0);
}

TEST_CASE("adagrad steps match manual calculation") {
  CHECK(near(run(R"({"type": "adagrad", "lr": 0.1})", 1, {2}).weight, 0.9));
  CHECK(near(run(R"({"type": "adagrad", "lr": 0.1, "initial_accumulator_value": 5})", 1, {2}).weight,
             1 - 0.2 / 3));
  CHECK(near(run(R"({"type": "adagrad", "lr": 0.1, "lr_decay": 1})", 1, {3, 4}).weight,
             1 - 0.1 - 0.05 * 4 / 5));
}

TEST_CASE("rmsprop steps match manual calculation") {
  CHECK(near(run(R"({"type": "rmsprop"})", 1, {1}).weight, 0.9));
  CHECK(near(run(R"({"type": "rmsprop", "centered": true})", 1, {1}).weight, 1 - 0.01 / std::sqrt(0.0099)));
  const Trace momentum = run(R"({"type": "rmsprop", "momentum": 0.5, "centered": true})", 1, {1, 0});
  REQUIRE(momentum.slots.size() == 3);
  CHECK(near(momentum.slots[0], 0.0099));                   // square_avg
  CHECK(near(momentum.slots[1], 0.5 / std::sqrt(0.0099)));  // momentum_buffer
  CHECK(near(momentum.slots[2], 0.0099));                   // grad_avg
  CHECK(near(momentum.weight, 1 - 0.01 * 1.5 / std::sqrt(0.0099)));
}

TEST_CASE("rmsprop stays finite where rounding makes the variance negative") {
  const Trace trace =
      run(R"({"type": "rmsprop", "centered": true, "alpha": 0.1})", 1, std::vector<float>(100, 0.3f));
  CHECK(std::isfinite(trace.weight));
}

TEST_CASE("adadelta steps match manual calculation") {
  const Trace first = run(R"({"type": "adadelta", "lr": 0.5, "eps": 0.01})", 1, {3});
  const double step = std::sqrt(0.01 / (0.1 * 9 + 0.01)) * 3;
  REQUIRE(first.slots.size() == 2);
  CHECK(near(first.weight, 1 - 0.5 * step));
  CHECK(near(first.slots[0], 0.9));                // square_avg
  CHECK(near(first.slots[1], 0.1 * step * step));  // acc_delta
  const Trace decayed = run(R"({"type": "adadelta", "eps": 0.01, "rho": 0.5, "weight_decay": 2})", 1, {1});
  CHECK(near(decayed.weight, 1 - std::sqrt(0.01 / (0.5 * 9 + 0.01)) * 3));
}

TEST_CASE("adam and adamw steps match manual calculation") {
  CHECK(near(run(R"({"type": "adam", "lr": 0.1})", 1, {3}).weight, 0.9));
  CHECK(near(run(R"({"type": "adam", "lr": 0.1, "weight_decay": 10})", 1, {-20}).weight, 1.1));
  CHECK(near(run(R"({"type": "adamw", "lr": 0.1, "weight_decay": 0.1})", 1, {3}).weight, 0.89));
  const Trace amsgrad = run(R"({"type": "adam", "amsgrad": true})", 1, {10, 0, 0});
  REQUIRE(amsgrad.slots.size() == 3);
  CHECK(near(amsgrad.slots[2], 0.1));
  CHECK(amsgrad.slots[1] < amsgrad.slots[2]);
}

TEST_CASE("lion steps as worked out by hand") {
  const Trace trace = run(R"({"type": "lion", "lr": 0.1, "weight_decay": 0.5})", 1, {3, -30});
  CHECK(near(trace.weight, (1 * 0.95 - 0.1) * 0.95 + 0.1));
  CHECK(near(trace.slots[0], 0.99 * 0.03 - 0.3));
  // The direction has the sign of 0.9 · average + 0.1 · gradient, not that of the gradient; at 0 there is
  // none.
  CHECK(near(run(R"({"type": "lion", "lr": 0.1, "betas": [0.9, 0.5]})", 0, {2, -1}).weight, -0.2));
  CHECK(run(R"({"type": "lion", "lr": 0.1})", 1, {0}).weight == 1);
}

TEST_CASE("every variant of an optimizer has as many slots as its step uses") {
  const std::string variants[] = {
      R"({"type": "sgd"})",
      R"({"type": "sgd", "momentum": 0.9})",
      R"({"type": "sgd", "momentum": 0.9, "nesterov": true})",
      R"({"type": "adagrad"})",
      R"({"type": "rmsprop"})",
      R"({"type": "rmsprop", "momentum": 0.9})",
      R"({"type": "rmsprop", "centered": true})",
      R"({"type": "rmsprop", "momentum": 0.9, "centered": true})",
      R"({"type": "adadelta"})",
      R"({"type": "adam"})",
      R"({"type": "adam", "amsgrad": true})",
      R"({"type": "adamw"})",
      R"({"type": "adamw", "amsgrad": true})",
      R"({"type": "ftrl"})",
      R"({"type": "lion"})",
  };
  for (const std::string& variant : variants) {
    INFO(variant);
    const Optimizer optimizer = mustParse(variant);
    uint32_t used = 99;
    optimizer.visitStep({1, 0.1}, [&]<class Step>(const Step&) { used = Step::kSlots; });
    CHECK(optimizer.slotCount() == used);
  }
}

TEST_CASE("slots have LibTorch's names and initial values") {
  const auto rmsprop = mustParse(R"({"type": "rmsprop", "momentum": 0.9, "centered": true})").slots();
  CHECK(rmsprop[0].name == "square_avg");
  CHECK(rmsprop[1].name == "momentum_buffer");
  CHECK(rmsprop[2].name == "grad_avg");
  const auto adagrad = mustParse(R"({"type": "adagrad", "initial_accumulator_value": 0.5})").slots();
  CHECK(adagrad[0].name == "sum");
  CHECK(adagrad[0].initialValue == 0.5f);
  CHECK(mustParse(R"({"type": "lion"})").slots()[0].name == "exp_avg");
}

TEST_CASE("the learning rate follows its schedule") {
  const auto rates = [](const std::string& schedule, std::vector<uint64_t> numbers) {
    const Optimizer optimizer = mustParse(R"({"lr": 0.8, "schedule": )" + schedule + "}");
    std::vector<double> found;
    for (const uint64_t number : numbers) found.push_back(optimizer.learningRate(number));
    return found;
  };
  const auto matches = [](const std::vector<double>& found, const std::vector<double>& expected) {
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      INFO("number " << i << ": " << found[i] << ", expected " << expected[i]);
      CHECK(near(found[i], expected[i]));
    }
  };
  matches(rates("{}", {1, 1000000}), {0.8, 0.8});
  matches(rates(R"({"warmup_updates": 4})", {1, 2, 4, 5}), {0.2, 0.4, 0.8, 0.8});
  matches(rates(R"({"type": "step", "every_updates": 3, "gamma": 0.5})", {1, 3, 4, 7}), {0.8, 0.8, 0.4, 0.2});
  matches(rates(R"({"type": "step", "every_updates": 3, "warmup_updates": 2})", {1, 2, 5, 6}),
          {0.4, 0.8, 0.8, 0.08});
  matches(rates(R"({"type": "cosine", "total_updates": 10, "lr_min": 0.2, "warmup_updates": 2})",
                {1, 2, 6, 10, 11, 1000}),
          {0.4, 0.8, 0.5, 0.2, 0.2, 0.2});
}

TEST_CASE("defaults are LibTorch's") {
  CHECK(mustParse("{}").describe() == "sgd lr=0.01");
  CHECK(mustParse(R"({"type": "adagrad"})").describe() == "adagrad lr=0.01");
  CHECK(mustParse(R"({"type": "rmsprop"})").describe() == "rmsprop lr=0.01");
  CHECK(mustParse(R"({"type": "adam"})").describe() == "adam lr=0.001");
  const Optimizer adamw = mustParse(R"({"type": "adamw"})");
  CHECK(adamw.describe() == "adamw lr=0.001");
  CHECK(std::get<AdamW>(adamw.algorithm).weightDecay == 0.01);
  CHECK(std::get<AdamW>(adamw.algorithm).betas == std::array<double, 2>{0.9, 0.999});
}

TEST_CASE("an optimizer's description names what differs from the defaults") {
  CHECK(mustParse(R"({"lr": 0.03, "momentum": 0.9})").describe() == "sgd lr=0.03 momentum=0.9");
  CHECK(mustParse(R"({"type": "adam", "betas": [0.8, 0.99], "amsgrad": true,
                      "schedule": {"type": "cosine", "total_updates": 9, "warmup_updates": 2}})")
            .describe() ==
        "adam lr=0.001 betas=0.8,0.99 amsgrad=true, schedule cosine total_updates=9 lr_min=0 "
        "warmup_updates=2");
}

TEST_CASE("a printed optimizer is parsed to the same") {
  for (
      const char* options :
      {R"({"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": true})",
       R"({"type": "adagrad", "lr_decay": 0.1, "schedule": {"type": "step", "every_updates": 7, "gamma": 0.3}})",
       R"({"type": "rmsprop", "centered": true})", R"({"type": "adadelta", "rho": 0.95})",
       R"({"type": "adam", "betas": [0.8, 0.9999], "amsgrad": true})",
       R"({"type": "ftrl", "lr": 0.05, "beta": 2, "l1": 0.1, "l2": 3, "initial_accumulator_value": 0.1})",
       R"({"type": "lion", "betas": [0.95, 0.98], "weight_decay": 0.1})",
       R"({"type": "adamw", "schedule": {"type": "cosine", "total_updates": 9, "warmup_updates": 2}})"}) {
    const Optimizer first = mustParse(options);
    const Optimizer second = mustParse(writeOptimizer(first).dump().c_str());
    CHECK(second.describe() == first.describe());
    CHECK(second.learningRate(8) == first.learningRate(8));
    CHECK(writeOptimizer(second) == writeOptimizer(first));
  }
}

TEST_CASE("bad options are rejected with the path and the reason") {
  using Catch::Matchers::Contains;
  CHECK_THAT(whyNot(R"({"type": "sdg"})"), Contains("type") && Contains("sgd"));
  CHECK_THAT(whyNot(R"({"momentum": -1})"), Contains("momentum") && Contains("-1"));
  CHECK_THAT(whyNot(R"({"lr": -0.1})"), Contains("lr"));
  CHECK_THAT(whyNot(R"({"type": "adam", "momentum": 0.9})"), Contains("momentum"));
  CHECK_THAT(whyNot(R"({"type": "adam", "betas": [0.9, 1]})"), Contains("betas"));
  CHECK_THAT(whyNot(R"({"type": "adam", "betas": [0.9]})"), Contains("betas") && Contains("2 numbers"));
  CHECK_THAT(whyNot(R"({"type": "adagrad", "eps": 0})"), Contains("eps"));
  for (const char* options : {R"({"nesterov": true})", R"({"nesterov": true, "momentum": 0})",
                              R"({"nesterov": true, "momentum": 0.9, "dampening": 0.1})"}) {
    CHECK_THAT(whyNot(options),
               Contains("nesterov") && Contains("Nesterov momentum requires a momentum and zero dampening"));
  }
  CHECK_THAT(whyNot(R"({"schedule": {"type": "step"}})"), Contains("schedule.every_updates"));
  CHECK_THAT(whyNot(R"({"schedule": {"type": "cosine"}})"), Contains("schedule.total_updates"));
  CHECK_THAT(whyNot(R"({"schedule": {"type": "cosine", "total_updates": 5, "warmup_updates": 5}})"),
             Contains("schedule.total_updates") && Contains("warmup_updates"));
  CHECK_THAT(whyNot(R"({"lr": 0.1, "schedule": {"type": "cosine", "total_updates": 5, "lr_min": 1}})"),
             Contains("schedule.lr_min") && Contains("0.1"));
  CHECK_THAT(whyNot(R"({"schedule": {"gamma": 0.5}})"), Contains("gamma"));
}

}  // namespace
}  // namespace psd::optimizer_test
