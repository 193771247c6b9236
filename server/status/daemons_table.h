#pragma once

#include <string>

#include "server/status/daemon_row.h"
#include "server/status/replica_set_status.h"

namespace psd {

/// A human-readable table of all daemons that serve a model or stand by: a row for each, and a line for each
/// that waits or is unreachable.
std::string daemonsTable(const DaemonRows& rows);

/// A daemon's role in its replica set, human-readable: one line, and one for each problem.
std::string replicaLines(const ReplicaSetStatus& group);

}  // namespace psd
