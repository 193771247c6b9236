#pragma once

#include <cstdint>
#include <string>

#include "common/log/log_line.h"
#include "server/membership/model_initialization.h"
#include "server/membership/roster.h"

namespace psd {

// Text about trainers for log lines and events.

/// "rank 3 (process 4711 on node7)"
std::string named(const Candidate& trainer);
/// The fields of a log line, optionally with the trainer's newest step.
LogFields fieldsOf(std::string event, const Candidate& trainer);
LogFields fieldsOf(std::string event, const Candidate& trainer, uint64_t step);
/// The text after "joined" for the initializer; else empty.
const char* initializerText(ModelInitialization::Role role, const Candidate& trainer);

}  // namespace psd
