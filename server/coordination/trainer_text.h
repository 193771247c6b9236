#pragma once

#include <cstdint>
#include <string>

#include "common/log/log_line.h"
#include "server/membership/model_start.h"
#include "server/membership/roster.h"

namespace psd {

// What lines of the log and events say of a trainer.

/// "rank 3 (process 4711 on node7)"
std::string named(const Candidate& trainer);
/// The fields of a line; with the trainer's newest step, where that is given.
LogFields fieldsOf(std::string event, const Candidate& trainer);
LogFields fieldsOf(std::string event, const Candidate& trainer, uint64_t step);
/// What follows "joined", of a trainer that brings values.
const char* whatItBrings(ModelStart::Role role, const Candidate& trainer);

}  // namespace psd
