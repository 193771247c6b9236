#include <cmath>
#include <set>
#include <thread>

#include "server/metrics/metric_values.h"
#include "server/metrics/recent_rate.h"
#include "test/support/catch.h"

namespace psd::metrics_test {
namespace {

struct Sample : MetricRegistry {
  Metric<Counter> first{*this, {"first", Unit::none, "the first"}};
  Metric<Histogram> times{*this, {"times_seconds", Unit::seconds, "times"}, kSecondsBounds};
  Metric<Gauge> level{*this, {"level", Unit::none, "a level"}};
  Metric<Counter> second{*this, {"second_bytes", Unit::bytes, "the second", true}};
};

TEST_CASE("a registry lists each metric once, by kind, in the order of declaration") {
  const Sample sample;
  const auto& counters = sample.all<Counter>();
  REQUIRE(counters.size() == 2);
  CHECK(counters[0] == &sample.first);
  CHECK(counters[1] == &sample.second);
  CHECK(sample.second.index() == 1);
  CHECK(sample.second.info().name == "second_bytes");
  CHECK(sample.second.info().isProblem);
  CHECK(sample.all<Gauge>() == std::vector{&sample.level});
  CHECK(sample.all<Histogram>() == std::vector{&sample.times});
}

template <class Kind>
void checkNames(std::set<std::string_view>& names) {
  for (const Metric<Kind>* metric : daemonMetrics().all<Kind>()) {
    const MetricInfo& info = metric->info();
    INFO(info.name);
    CHECK(names.insert(info.name).second);
    CHECK_FALSE(info.help.empty());
    CHECK(info.name.ends_with("_bytes") == (info.unit == Unit::bytes));
    CHECK(info.name.ends_with("_seconds") == (info.unit == Unit::seconds));
  }
}

TEST_CASE("each of the daemon's metrics has a unique name that ends with its unit") {
  std::set<std::string_view> names;
  checkNames<Counter>(names);
  checkNames<Gauge>(names);
  checkNames<Histogram>(names);
  CHECK(names.contains("gradients"));
  CHECK(names.contains("staleness"));
}

TEST_CASE("concurrent additions of many threads are all counted") {
  constexpr int kThreads = 4, kTimes = 20'000;
  DaemonMetrics counters;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&counters, i] {
      for (int k = 0; k < kTimes; k++) {
        counters.gradients.add();
        counters.pushBytes.add(3);
        counters.connectionsOpen.add(2);
        counters.connectionsOpen.subtract();
        counters.staleness.record(i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  constexpr uint64_t kAll = kThreads * kTimes;
  CHECK(MetricValues<Counter>(counters)[counters.gradients] == kAll);
  CHECK(MetricValues<Counter>(counters)[counters.pushBytes] == 3 * kAll);
  CHECK(MetricValues<Counter>(counters)[counters.pullBytes] == 0);
  CHECK(MetricValues<Gauge>(counters)[counters.connectionsOpen] == kAll);
  const HistogramValue staleness = MetricValues<Histogram>(counters)[counters.staleness];
  CHECK(staleness.count == kAll);
  CHECK(staleness.sum == kTimes * (0 + 1 + 2 + 3));
  CHECK(staleness.most == 3);
  for (size_t bucket = 0; bucket < 3; bucket++) CHECK(staleness.buckets[bucket].count == kTimes);
  CHECK(staleness.buckets[3].count == kTimes);  // 3 is above 2, and at most 4
}

TEST_CASE("a histogram's bounds belong to their buckets, and there is a bucket above them") {
  Histogram histogram(kCountBounds);
  for (const double value : {0., 1., 2., 3., 4., 5., 65536., 65537., 1e12}) histogram.record(value);
  const HistogramValue value = histogram.value();
  REQUIRE(value.buckets.size() == kCountBounds.size() + 1);
  const std::vector<uint64_t> first = {1, 1, 1, 2, 1, 0};
  for (size_t i = 0; i < first.size(); i++) CHECK(value.buckets[i].count == first[i]);
  CHECK(value.buckets[kCountBounds.size() - 1].count == 1);
  CHECK(value.buckets[kCountBounds.size() - 1].atMost == 65536);
  CHECK(value.buckets.back().count == 2);
  CHECK_FALSE(value.buckets.back().atMost);
  CHECK(value.most == 1e12);
}

TEST_CASE("quantiles lie in their bucket and never above the largest value") {
  Histogram histogram(kCountBounds);
  CHECK(histogram.value().quantile(0.5) == 0);
  CHECK(histogram.value().bound(0.99) == 0);
  for (int i = 0; i < 98; i++) histogram.record(3);
  CHECK(std::abs(histogram.value().quantile(0.5) - 2.5) < 1e-9);  // between 2 and 3, the largest
  CHECK(histogram.value().bound(0.5) == 3);
  for (int i = 0; i < 2; i++) histogram.record(100);
  const HistogramValue value = histogram.value();
  CHECK(std::abs(value.quantile(0.5) - (2 + 2 * 50. / 98)) < 1e-9);
  CHECK(value.bound(0.5) == 4);
  CHECK(value.bound(0.98) == 4);
  CHECK(value.bound(0.99) == 100);  // in the bucket from 65 to 128
  CHECK(value.quantile(1) == 100);
}

TEST_CASE("a recent rate is that of the last ten seconds, or of all if there were fewer") {
  RecentRate rate;
  CHECK(rate.perSecond(5, 1000) == 0);
  rate.note(100, 1000);
  CHECK(rate.perSecond(100, 1000) == 0);
  CHECK(rate.perSecond(150, 3000) == 25);
  for (uint64_t ms = 1250; ms <= 60'000; ms += 250) rate.note(100 + (ms - 1000) / 100, ms);  // ten a second
  CHECK(std::abs(rate.perSecond(690, 60'000) - 10) < 0.1);
  for (uint64_t ms = 60'250; ms <= 71'000; ms += 250) rate.note(690, ms);  // and none
  CHECK(rate.perSecond(690, 71'000) == 0);
  CHECK(rate.perSecond(3, 71'000) == 0);
}

TEST_CASE("quantiles of values made up by a peer are numbers") {
  HistogramValue value;
  value.count = 7;
  CHECK(value.quantile(0.5) == 0);
  value.buckets = {{std::nullopt, UINT64_MAX}, {-5., UINT64_MAX}, {3., 0}};
  value.most = -1;
  CHECK(value.quantile(0.5) <= 0);
  CHECK(value.bound(0.99) <= 0);
}

}  // namespace
}  // namespace psd::metrics_test
