#pragma once

#include <functional>
#include <memory>
#include <ostream>

#include "common/status/status.h"
#include "trainer/cli/command_line.h"
#include "trainer/client/client.h"

namespace psd {

/// Client::connect, or what stands in for it in a test.
using Connect = std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>;

/// Trains to the end and prints how it goes and the summary; rank 0 also scores the final model on the test
/// set. Returns 0, or the signal that ended it early: then it has left the daemon politely.
Result<int> runTrain(const TrainCommand& command, const Connect& connect, std::ostream& out, bool terminal);

/// Prints how well the daemon's model does on the test set; with EvalCommand::every, again and again until
/// the daemon is gone. Returns 0, or the signal that ended that.
Result<int> runEval(const EvalCommand& command, const Connect& connect, std::ostream& out);

/// Trains with virtual trainers and prints the scores and what staleness came of it. Returns 0, or the signal
/// that ended it early.
Result<int> runSimulate(const SimulateCommand& command, const Connect& connect, std::ostream& out);

/// Bridges until a signal comes or the run of this machine's daemon is over. Returns 0: state and daemons are
/// as it left them, and another bridge may go on.
Status runBridge(const BridgeCommand& command, const Connect& connect);

/// Measures a running daemon and prints the figures.
Status runBenchCommand(const BenchCommand& command, const Connect& connect, std::ostream& out);
Status runRowsBenchCommand(const RowsBenchCommand& command, const Connect& connect, std::ostream& out);
Status runTrainBenchCommand(const TrainBenchCommand& command, const Connect& connect, std::ostream& out);

/// The whole program: exit status 0, 1 (failed), 2 (wrong usage) or 128 + signal. Problems go to standard
/// error as one line that begins with "psd-trainer: ".
int runProgram(int argc, const char* const* argv);

}  // namespace psd
