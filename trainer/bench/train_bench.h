#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/loop/training_loop.h"
#include "trainer/model/model.h"

namespace psd {

/// Medians in seconds. A value type.
struct TrainBenchReport {
  uint64_t steps = 0;  ///< counted steps with the server
  double server = 0;   ///< one step with the server, from the end of the previous step
  double alone = 0;    ///< one step without: compute, then SGD in place
  double pull = 0;     ///< of a step with the server, as in StepReport; likewise the next two
  double compute = 0;
  double push = 0;
  std::string policy;
  std::string device;  ///< of the daemon

  double ratio() const { return server / alone; }
};

/// Trains `withServer` through the client and `alone`, a second model of the same kind, without a daemon, in
/// alternating blocks of a few steps on this thread, so that other load on the machine affects both. The
/// first block of each is a warm-up, and the first step of each block does not count, since caches and
/// transfers are in the state that the other kind left. Ends after `seconds`, then leaves. The daemon must
/// hold no other model.
Result<TrainBenchReport> runTrainBench(Client& client, Model& withServer, Model& alone, const Dataset& data,
                                       const LoopOptions& loop, double seconds);

/// Human-readable, aligned lines.
std::string formatText(const TrainBenchReport& report);
/// One JSON object on one line.
std::string formatJson(const TrainBenchReport& report);

}  // namespace psd
