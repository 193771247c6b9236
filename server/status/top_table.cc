#include "server/status/top_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/status/daemons_table.h"
#include "server/status/reported_values.h"
#include "server/status/table_text.h"

namespace psd {
namespace {

std::string byteRateText(double perSecond) { return bytesText(static_cast<uint64_t>(perSecond)) + "/s"; }

double rateOf(uint64_t before, uint64_t now, double seconds) {
  return seconds > 0 ? static_cast<double>(now - std::min(before, now)) / seconds : 0;
}

const TrainerStatus* sameTrainer(const DaemonStatus& status, const TrainerStatus& trainer) {
  for (const TrainerStatus& each : status.trainers) {
    if (each.rank == trainer.rank && each.process == trainer.process) return &each;
  }
  return nullptr;
}

/// A trainer and its rates since the previous reading.
struct TopRow {
  const TrainerStatus* trainer = nullptr;
  double steps = 0, samples = 0, pulled = 0, pushed = 0;

  double loss() const {
    const ReportedStatus* const loss = reportedOf(*trainer, kReportedLoss);
    return loss == nullptr ? -HUGE_VAL : loss->value.value_or(HUGE_VAL);  // one that is not finite first
  }
};

/// A key of TopView::sort, and what it orders by: largest first, ties by rank.
struct SortKey {
  std::string_view name;
  double (*value)(const TopRow& row);
};
constexpr SortKey kSortKeys[] = {
    {"rank", [](const TopRow&) { return 0.0; }},
    {"step", [](const TopRow& row) { return static_cast<double>(row.trainer->step); }},
    {"samples", [](const TopRow& row) { return row.samples; }},
    {"loss", [](const TopRow& row) { return row.loss(); }},
    {"staleness", [](const TopRow& row) { return static_cast<double>(row.trainer->staleness); }},
    {"pulled", [](const TopRow& row) { return row.pulled; }},
    {"pushed", [](const TopRow& row) { return row.pushed; }},
    {"seen", [](const TopRow& row) { return row.trainer->lastSeenSeconds; }}};

const SortKey& sortKeyNamed(std::string_view name) {
  const auto* const found = std::ranges::find(kSortKeys, name, &SortKey::name);
  return found == std::end(kSortKeys) ? kSortKeys[0] : *found;
}

std::vector<TopRow> topRows(const DaemonStatus& before, const DaemonStatus& now, double seconds,
                            std::string_view sort) {
  std::vector<TopRow> rows;
  for (const TrainerStatus& each : now.trainers) {
    TopRow& row = rows.emplace_back(TopRow{&each});
    const TrainerStatus* const old = sameTrainer(before, each);
    if (old == nullptr) continue;
    row.steps = rateOf(old->step, each.step, seconds);
    row.samples = row.steps * static_cast<double>(each.batch);
    row.pulled = rateOf(old->pulledBytes, each.pulledBytes, seconds);
    row.pushed = rateOf(old->pushedBytes, each.pushedBytes, seconds);
  }
  std::ranges::sort(rows, [&key = sortKeyNamed(sort)](const TopRow& one, const TopRow& other) {
    const double a = key.value(one), b = key.value(other);
    return a > b || (!(b > a) && one.trainer->rank < other.trainer->rank);
  });
  return rows;
}

std::vector<std::string> topCells(const TopRow& row) {
  const TrainerStatus& trainer = *row.trainer;
  return {fmt::to_string(trainer.rank),
          fmt::format("{}@{}", trainer.pid, trainer.host),
          fmt::to_string(trainer.step),
          rateText(row.steps),
          rateText(row.samples),
          reportedText(trainer, kReportedLoss),
          fmt::to_string(trainer.staleness),
          byteRateText(row.pulled),
          byteRateText(row.pushed),
          durationText(trainer.lastSeenSeconds) + " ago",
          !trainer.connected         ? "its connection"
          : trainer.waitsFor.empty() ? "-"
                                     : trainer.waitsFor,
          reportedRateText(trainer, kReportedTokens)};
}

/// One row per trainer, in at most `most` lines, or three: a heading, a trainer, the number of the others.
std::string topTrainers(const std::vector<TopRow>& trainers, bool tokens, size_t most, size_t columns) {
  if (trainers.empty()) return "  no trainers\n";
  std::vector<TextRow> rows = {{"rank", "process", "step", "steps/s", "samples/s", "loss", "staleness",
                                "pulled", "pushed", "last seen", "waits for", "tokens/s"}};
  const size_t shown = trainers.size() < most ? trainers.size() : std::max<size_t>(most, 3) - 2;
  for (size_t i = 0; i < shown; i++) rows.push_back(topCells(trainers[i]));
  if (!tokens) eraseColumn(rows, "tokens/s");
  for (const char* const name :
       {"process", "steps/s", "pulled", "pushed", "staleness", "step", "last seen"}) {
    if (rowWidth(rows) > columns) eraseColumn(rows, name);
  }
  const size_t hidden = trainers.size() - shown;
  return alignedRows(rows) + (hidden == 0 ? "" : "  " + countText(hidden, "more trainer") + "\n");
}

std::string topWaiting(const DaemonStatus& now) {
  std::string out;
  const bool several = now.hasSeveralGroups();
  for (const WaitingStatus& waiting : now.waiting) {
    const std::string who = ranksText(waiting.ranks);
    const std::string whom = joined(waiting.awaited, ", ", [](const AwaitedStatus& one) {
      return fmt::format("{} ({})", one.rank, durationText(one.waitedSeconds));
    });
    out += labelledLine(
        "waiting", fmt::format("{}{}: ranks {} for {}", waiting.what, several ? " of " + waiting.group : "",
                               who, whom.empty() ? "others to join" : whom));
  }
  return out;
}

/// Each line cut to that width.
std::string cutLines(const std::string& text, size_t columns) {
  std::string out;
  size_t column = 0;
  for (const char c : text) {
    if (c == '\n') {
      column = 0;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {  // not the rest of a character in UTF-8
      column++;
    }
    if (column <= columns) out += c;
  }
  return out;
}

}  // namespace

std::vector<std::string_view> topSortKeys() {
  std::vector<std::string_view> names;
  for (const SortKey& key : kSortKeys) names.push_back(key.name);
  return names;
}

std::string topTable(const DaemonStatus& before, const DaemonStatus& now, const TopView& view) {
  const bool same =
      before.pid == now.pid && before.host == now.host && before.uptimeSeconds < now.uptimeSeconds;
  const DaemonStatus none;
  const DaemonStatus& old = same ? before : none;
  const double seconds = now.uptimeSeconds - old.uptimeSeconds;
  const auto& metrics = daemonMetrics();
  const auto rate = [&](const Metric<Counter>& counter) {
    return rateOf(old.counters[counter], now.counters[counter], seconds);
  };
  const std::vector<TopRow> rows = topRows(old, now, std::isfinite(seconds) ? seconds : 0, view.sort);
  double samples = 0;
  for (const TopRow& row : rows) samples += row.samples;
  std::string out = labelledLine(
      "psd " + oneLine(now.version, 20),
      fmt::format("{}, {}, up {}, {} resident", now.state, now.model ? now.model->name : "no model yet",
                  durationText(now.uptimeSeconds), bytesText(now.residentBytes)));
  const std::optional<double> tokens = reportedSum(now.trainers, kReportedTokens);
  out += labelledLine(
      "rates",
      fmt::format("{} gradients/s, {} samples/s, {}{} pulled, {} pushed", rateText(rate(metrics.gradients)),
                  rateText(samples), tokens ? rateText(*tokens) + " tokens/s, " : "",
                  byteRateText(rate(metrics.pullBytes)), byteRateText(rate(metrics.pushBytes))));
  if (now.replicaSet) out += replicaLines(*now.replicaSet);
  out += labelledLine("trainers", fmt::format("{} of {} joined, {} lost", now.trainers.size(), now.worldSize,
                                              now.trainersLost));
  const std::string waiting = topWaiting(now);
  const auto lines = [](const std::string& text) {
    return static_cast<size_t>(std::ranges::count(text, '\n'));
  };
  const size_t others = lines(out) + lines(waiting);
  const size_t most = view.rows == 0 ? SIZE_MAX : view.rows - std::min(view.rows, others);
  return cutLines(out + topTrainers(rows, tokens.has_value(), most, view.columns) + waiting, view.columns);
}

}  // namespace psd
