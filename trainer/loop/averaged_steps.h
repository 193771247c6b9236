#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/client/client.h"
#include "trainer/loop/collective.h"
#include "trainer/model/model.h"

namespace psd {

/// A gradient cut into arrays of at most `bucketBytes` (at least one element each), in order.
std::vector<std::span<float>> cutIntoBuckets(std::span<float> gradient, uint64_t bucketBytes);

/// A trainer's steps under allreduce: with the others of its group it averages gradients; the first of the
/// group pushes the average, pulls the parameters that come of it, and hands them on. When the group breaks,
/// the next one begins with what the daemon has, and the daemon tells whether the step that broke is in that.
/// Owned by one thread, like the client, the model and the maker, which outlive it.
class AveragedSteps {
 public:
  AveragedSteps(Client& client, Model& model, CollectiveMaker& maker, const AllReduceTerms& terms)
      : client_(client), model_(model), maker_(maker), terms_(terms) {}

  /// What became of a step.
  struct Outcome {
    bool counted = false;  ///< the average with this gradient is in the model; else it is to be computed anew
    std::optional<PushInfo> push = {};  ///< of the average, where this trainer made it
  };

  /// Is in a group, with the parameters that its next step is computed from in the model.
  Status ready();
  /// Averages the model's gradients, of so many samples; after ready(). `last`: it takes part no more after
  /// this. The gradients may hold anything then. `number`: of the push, should this trainer make one.
  Result<Outcome> step(uint32_t samples, bool last, Step number);

 private:
  /// Leaves the group, and is in the next one once this returns.
  Status formAnew();
  /// One attempt; false: the group broke before it worked.
  Result<bool> tryToForm();
  /// Pulls the parameters if this trainer is the first, and everyone has them. `counted`: whether the step
  /// before counts, as the first one says.
  Status spread(bool& counted);
  /// The first one's part: pushes the mean, and pulls what the daemon makes of it.
  Result<PushInfo> pushMean(uint32_t samples, Step number);
  /// Whether somebody waits for a group, as far as the first one is told.
  bool wanted();

  Client& client_;
  Model& model_;
  CollectiveMaker& maker_;
  const AllReduceTerms terms_;
  std::unique_ptr<Collective> group_;      // null: there is none that works
  uint64_t generation_ = 0;                // of the newest group
  bool first_ = false;                     // this trainer is the first of it
  Version reached_;                        // by the group before, as far as the daemon knows
  std::vector<Version> basis_;             // of the parameters, where this trainer pulled them
  Version version_;                        // of the parameters
  std::optional<Pending<RoundDue>> call_;  // tells the first one that a group is wanted
  std::string broken_;                     // why the newest group broke
};

}  // namespace psd
