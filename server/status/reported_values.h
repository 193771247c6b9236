#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/status/daemon_status.h"

namespace psd {

/// Names of values that trainers report automatically and that tables show beside the page.
inline constexpr std::string_view kReportedLoss = "loss";
inline constexpr std::string_view kReportedTokens = "tokens_per_second";

/// Null if the trainer has not reported it.
const ReportedStatus* reportedOf(const TrainerStatus& trainer, std::string_view name);

/// Over all connected trainers; nothing if none of them reports it.
std::optional<double> reportedSum(const std::vector<TrainerStatus>& trainers, std::string_view name);

/// "0.2512", "not finite", or "-" if the trainer has not reported it.
std::string reportedText(const TrainerStatus& trainer, std::string_view name);
/// "18230", per second; "not finite", or "-" if the trainer has not reported it.
std::string reportedRateText(const TrainerStatus& trainer, std::string_view name);

}  // namespace psd
