#include "trainer/task/score.h"

#include <cmath>
#include <utility>
#include <vector>

#include "test/support/catch.h"
#include "trainer/dataset/random.h"

namespace psd {
namespace {

TEST_CASE("each kind of metric is computed from its sums") {
  CHECK(Metric::of("loss", MetricKind::mean, 6, 4).value() == 1.5);
  CHECK(Metric::of("accuracy", MetricKind::share, 3, 4).value() == 0.75);
  CHECK(Metric::of("perplexity", MetricKind::exponential, 6, 4).value() == std::exp(1.5));
  CHECK(Metric::of("rmse", MetricKind::root, 9, 4).value() == 1.5);
  CHECK(std::isnan(Metric::of("loss", MetricKind::mean, 0, 0).value()));
}

TEST_CASE("scores of parts add up to that of the whole, in any order of their metrics") {
  const auto scoreOf = [](double loss, double squares, double weight) {
    return Score{static_cast<uint64_t>(weight),
                 {Metric::of("loss", MetricKind::mean, loss, weight),
                  Metric::of("rmse", MetricKind::root, squares, weight)}};
  };
  Score all;
  all += scoreOf(2, 5, 3);
  Score turned = scoreOf(4, 7, 9);
  std::swap(turned.metrics[0], turned.metrics[1]);
  all += turned;
  CHECK(all.samples == 12);
  CHECK(all.loss() == 0.5);
  CHECK(all.value("rmse") == 1);  // not the mean of the parts' roots
  CHECK(all.toString() == "loss 0.5000, rmse 1.0000");
  CHECK(std::isnan(all.value("accuracy")));
}

TEST_CASE("the area under the curve is the frequency with which a positive ranks above a negative") {
  Metric auc = Metric::auc("auc");
  CHECK(std::isnan(auc.value()));
  auc.count(0.9f, true);
  CHECK(std::isnan(auc.value()));
  auc.count(0.1f, false);
  CHECK(auc.value() == 1);
  auc.count(0.95f, false);
  CHECK(auc.value() == 0.5);
  auc.count(0.9f, false);  // equal: half
  CHECK(auc.value() == 0.5);
  auc.count(-7, true);  // only the order counts
  CHECK(auc.value() == 0.25);
  auc.count(std::nextafter(0.9f, 1.f), true);  // however close
  CHECK(auc.value() == 3.5 / 9);
  auc.count(std::nanf(""), false);
  CHECK(std::isnan(auc.value()));
}

TEST_CASE("the area under the curve of merged parts is that of all pairs, with many ties") {
  Random random(5);
  std::vector<std::pair<float, bool>> samples;
  Score all;
  for (int part = 0; part < 3; ++part) {
    Metric auc = Metric::auc("auc");
    for (int i = 0; i < 200; ++i) {
      const bool label = random.below(3) == 0;
      const auto score = static_cast<float>(random.below(60) + (label ? 40 : 0));
      samples.emplace_back(score, label);
      auc.count(score, label);
    }
    all += Score{200, {auc}};
  }
  double wins = 0, pairs = 0;
  for (const auto& [positive, isPositive] : samples) {
    for (const auto& [negative, isOther] : samples) {
      if (!isPositive || isOther) continue;
      ++pairs;
      wins += positive > negative ? 1 : positive == negative ? 0.5 : 0;
    }
  }
  CHECK(wins / pairs > 0.8);
  CHECK(wins / pairs < 0.99);
  CHECK(std::abs(all.value("auc") - wins / pairs) < 1e-12);
}

TEST_CASE("metrics are human-readable") {
  CHECK(Metric::of("loss", MetricKind::mean, 1, 3).toString() == "loss 0.3333");
  CHECK(Metric::of("accuracy", MetricKind::share, 39, 40).toString() == "accuracy 97.50 %");
  CHECK(Metric::of("perplexity", MetricKind::exponential, 0, 1).toString() == "perplexity 1.00");
}

}  // namespace
}  // namespace psd
