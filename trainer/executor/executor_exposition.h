#pragma once

#include <string>

#include "trainer/executor/executor_status.h"

namespace psd {

/// An executor's status in the Prometheus text exposition format. Every metric has HELP and TYPE lines, even
/// if it has no sample.
std::string exposition(const ExecutorStatus& status);

}  // namespace psd
