#include "server/status/reported_values.h"

#include <fmt/format.h>

#include "server/status/table_text.h"

namespace psd {
namespace {

constexpr const char* kNotReported = "-";
constexpr const char* kNotFinite = "not finite";

}  // namespace

const ReportedStatus* reportedOf(const TrainerStatus& trainer, std::string_view name) {
  for (const ReportedStatus& each : trainer.reports) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

std::optional<double> reportedSum(const std::vector<TrainerStatus>& trainers, std::string_view name) {
  std::optional<double> sum;
  for (const TrainerStatus& trainer : trainers) {
    const ReportedStatus* const found = reportedOf(trainer, name);
    if (trainer.connected && found && found->value) sum = sum.value_or(0) + *found->value;
  }
  return sum;
}

std::string reportedText(const TrainerStatus& trainer, std::string_view name) {
  const ReportedStatus* const found = reportedOf(trainer, name);
  if (!found) return kNotReported;
  return found->value ? fmt::format("{:.4g}", *found->value) : kNotFinite;
}

std::string reportedRateText(const TrainerStatus& trainer, std::string_view name) {
  const ReportedStatus* const found = reportedOf(trainer, name);
  if (!found) return kNotReported;
  return found->value ? rateText(*found->value) : kNotFinite;
}

}  // namespace psd
