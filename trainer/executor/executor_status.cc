#include "trainer/executor/executor_status.h"

#include <algorithm>
#include <utility>

namespace psd {

nlohmann::ordered_json statusJson(const ExecutorStatus& status) {
  const TaskThreads::Figures& passes = status.passes;
  nlohmann::ordered_json queue = nlohmann::ordered_json::array(), trainers = queue;
  for (const TaskThreads::Waiting& each : passes.waiting) {
    queue.push_back({{"rank", each.label.rank},
                     {"context", each.label.context},
                     {"call", nameOf(each.label.kind)},
                     {"priority", each.label.priority},
                     {"waited_s", each.seconds}});
  }
  for (const RemoteTrainerStatus& each : status.trainers) {
    trainers.push_back({{"rank", each.rank},
                        {"peer", each.peer},
                        {"joined", each.joined},
                        {"contexts", each.contexts},
                        {"forwards", each.forwards},
                        {"steps", each.steps},
                        {"staleness", each.staleness},
                        {"rows", each.rows}});
  }
  return {{"module", status.module},
          {"parameters", status.parameters},
          {"weights", status.weights},
          {"devices", status.devices},
          {"workers", status.workers},
          {"computing", passes.running},
          {"calls", status.calls},
          {"queue", std::move(queue)},
          {"passes", passes.done},
          {"waited_s_mean", passes.waitedSeconds / static_cast<double>(std::max<uint64_t>(passes.done, 1))},
          {"waited_s_most", passes.waitedSecondsMost},
          {"overloaded", status.overloaded},
          {"memory_bytes", status.memoryBytes},
          {"ending", status.ending},
          {"trainers", std::move(trainers)}};
}

}  // namespace psd
