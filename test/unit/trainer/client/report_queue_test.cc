// Reports that are made while the previous one is not answered.

#include "trainer/client/report_queue.h"

#include <map>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/debug.h>

#include "test/support/catch.h"

namespace psd::client_report_queue_test {
namespace {

struct Sent {
  uint64_t step = 0;
  std::map<std::string, double> values;
  bool operator==(const Sent&) const = default;
};

/// A queue whose daemon answers when the test requests it.
struct Reporting {
  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  std::vector<Sent> sent;
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> answers;
  ReportQueue queue{[this](Step step, std::span<const NamedValue> values) {
    Sent report{step.value, {}};
    for (const NamedValue& each : values) report.values[each.name] = each.value;
    CHECK(report.values.size() == values.size());
    sent.push_back(std::move(report));
    auto answer = kj::newPromiseAndFulfiller<void>();
    answers.push_back(kj::mv(answer.fulfiller));
    return kj::mv(answer.promise);
  }};

  void add(uint64_t step, const std::vector<NamedValue>& values) { queue.add(Step{step}, values); }
  void answerNewest() {
    answers.back()->fulfill();
    settle();
  }
  void settle() {
    kj::evalLast([] {}).wait(scope);
  }
};

TEST_CASE("A report waits for the answer of the previous one, and one made meanwhile is merged into it") {
  Reporting reporting;
  reporting.add(7, {{"pace", 100}});
  reporting.add(7, {{"loss", 0.5}});
  reporting.add(8, {{"pace", 101}});
  reporting.add(8, {{"loss", 0.25}});
  reporting.add(9, {{"pace", 102}});
  reporting.settle();
  CHECK(reporting.sent == std::vector<Sent>{{7, {{"pace", 100}}}});
  reporting.answerNewest();
  const Sent both{9, {{"loss", 0.25}, {"pace", 102}}};
  REQUIRE(reporting.sent.size() == 2);
  CHECK(reporting.sent[1] == both);
  reporting.answerNewest();
  CHECK(reporting.sent.size() == 2);  // each is sent once
  reporting.add(10, {{"loss", 0.125}});
  reporting.settle();
  REQUIRE(reporting.sent.size() == 3);
  CHECK(reporting.sent[2] == Sent{10, {{"loss", 0.125}}});
}

TEST_CASE("Waiting values never exceed one report's maximum, and the newest are kept") {
  Reporting reporting;
  reporting.add(0, {});
  const auto name = [](size_t i) { return "value" + std::to_string(i); };
  for (size_t i = 0; i < 3 * kReportedValuesMax; i++) {
    reporting.add(i, {{name(i), static_cast<double>(i)}});
  }
  reporting.answerNewest();
  REQUIRE(reporting.sent.size() == 2);
  const Sent& merged = reporting.sent[1];
  CHECK(merged.step == 3 * kReportedValuesMax - 1);
  CHECK(merged.values.size() == kReportedValuesMax);
  for (size_t i = 2 * kReportedValuesMax; i < 3 * kReportedValuesMax; i++)
    CHECK(merged.values.contains(name(i)));
}

TEST_CASE("No more reports are sent once one has failed") {
  Reporting reporting;
  reporting.add(1, {{"loss", 1}});
  reporting.add(2, {{"loss", 2}});
  reporting.answers[0]->reject(KJ_EXCEPTION(UNIMPLEMENTED, "no reports here"));
  reporting.settle();
  reporting.add(3, {{"loss", 3}});
  reporting.settle();
  CHECK(reporting.sent.size() == 1);
}

}  // namespace
}  // namespace psd::client_report_queue_test
