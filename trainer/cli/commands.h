#pragma once

#include <functional>
#include <memory>
#include <ostream>

#include "common/status/status.h"
#include "trainer/cli/command.h"
#include "trainer/client/api/client.h"

namespace psd {

/// Client::connect, or a substitute in tests.
using Connect = std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>;

/// Trains to the end and prints progress and the summary; rank 0 also scores the final model on the test set.
/// Returns 0, or the signal that ended it early, after it has left the run.
Result<int> runTrain(const TrainCommand& command, const Connect& connect, std::ostream& out, bool terminal);

/// Prints the score of the daemon's model on the test set; with EvalCommand::every, periodically until the
/// daemon is gone. Returns 0, or the signal that ended it.
Result<int> runEval(const EvalCommand& command, const Connect& connect, std::ostream& out);

/// Trains with virtual trainers and prints the scores and the staleness. Returns 0, or the signal that ended
/// it early.
Result<int> runSimulate(const SimulateCommand& command, const Connect& connect, std::ostream& out);

/// Bridges until a signal arrives or the run of this machine's daemon ends. Afterwards another bridge can
/// resume from the state.
Status runBridge(const BridgeCommand& command, const Connect& connect);

/// Measures a running daemon and prints the results.
Status runBenchCommand(const BenchCommand& command, const Connect& connect, std::ostream& out);
Status runRowsBenchCommand(const RowsBenchCommand& command, const Connect& connect, std::ostream& out);
Status runTrainBenchCommand(const TrainBenchCommand& command, const Connect& connect, std::ostream& out);

/// The whole program; returns the exit status: 0, 1 (failed), 2 (usage error) or 128 + signal. Errors are
/// printed to standard error as one line that begins with "psd-trainer: ".
int runProgram(int argc, const char* const* argv);

}  // namespace psd
