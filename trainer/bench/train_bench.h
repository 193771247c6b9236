#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/loop/training_loop.h"
#include "trainer/model/model.h"

namespace psd {

/// Medians in seconds. A value type.
struct TrainBenchReport {
  uint64_t steps = 0;  ///< with the server, that count
  double server = 0;   ///< one step with the server, from the end of the step before
  double alone = 0;    ///< one step without: compute, then SGD in place
  double pull = 0;     ///< of a step with the server, as StepReport has it; so the next two
  double compute = 0;
  double push = 0;
  std::string policy;
  std::string device;  ///< of the daemon

  double ratio() const { return server / alone; }
};

/// Trains `withServer` through the client and `alone`, a second model of the same kind, without a daemon:
/// blocks of a few steps in turns on this thread, so that what else the machine does touches both. The first
/// block of each warms up, and the first step of a block, which finds caches and transfers as the other
/// left them, does not count. Ends after `seconds`, and leaves. The daemon must hold no other model.
Result<TrainBenchReport> runTrainBench(Client& client, Model& withServer, Model& alone, const Dataset& data,
                                       const LoopOptions& loop, double seconds);

/// A few aligned lines for people.
std::string formatText(const TrainBenchReport& report);
/// One JSON object on one line.
std::string formatJson(const TrainBenchReport& report);

}  // namespace psd
