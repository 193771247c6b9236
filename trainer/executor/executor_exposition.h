#pragma once

#include <string>

#include "trainer/executor/executor_status.h"

namespace psd {

/// An executor's status in Prometheus' text exposition format. Every metric has its HELP and TYPE, also where
/// it has no sample now.
std::string exposition(const ExecutorStatus& status);

}  // namespace psd
