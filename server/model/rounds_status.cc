#include "server/model/rounds_status.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace psd {
namespace {

/// Sorted and without duplicates.
std::vector<uint32_t> eachOnce(const std::vector<Rank>& ranks) {
  std::vector<uint32_t> values;
  for (const Rank rank : ranks) values.push_back(rank.value);
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

RoundsStatus roundsStatusOf(const RoundsReport& report, std::string group, std::string_view policy) {
  RoundsStatus out;
  out.group = std::move(group);
  out.policy = policy;
  out.closed = report.closed;
  out.generation = report.generation;
  out.in = eachOnce(report.last.contributors);
  std::ranges::set_difference(eachOnce(report.last.missing), out.in, std::back_inserter(out.missing));
  out.late = eachOnce(report.last.late);
  out.openSeconds = report.last.seconds;
  out.graceSeconds = report.last.graceSeconds;
  out.contributed = eachOnce(report.here);
  out.graceLeftSeconds = report.graceLeftSeconds;
  for (const auto& [rank, rounds, running] : report.leftOut) {
    out.leftOut.push_back({rank.value, rounds, running});
  }
  std::ranges::sort(out.leftOut, {}, &LeftOutStatus::rank);
  return out;
}

}  // namespace psd
