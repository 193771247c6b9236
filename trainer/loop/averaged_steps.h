#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/loop/collective.h"
#include "trainer/model/model.h"

namespace psd {

/// A gradient cut into arrays of at most `bucketBytes` (at least one element each), in order.
std::vector<std::span<float>> cutIntoBuckets(std::span<float> gradient, uint64_t bucketBytes);

/// A trainer's steps under allreduce: the members of an averaging group average their gradients; the first
/// member pushes the average, pulls the resulting parameters and broadcasts them. When a group breaks, the
/// next one starts from the daemon's parameters, and the daemon reports whether they include the interrupted
/// step. Owned by one thread; the client, the model and the maker outlive it.
class AveragedSteps {
 public:
  AveragedSteps(Client& client, Model& model, CollectiveMaker& maker, const AllReduceTerms& terms)
      : client_(client), model_(model), maker_(maker), terms_(terms) {}

  /// Outcome of a step.
  struct Outcome {
    bool counted = false;               ///< the model includes this gradient; otherwise it must be recomputed
    std::optional<PushInfo> push = {};  ///< answer to the push of the average, if this trainer pushed it
  };

  /// Joins a group if there is none; afterwards the model holds the parameters for the next step.
  Status ready();
  /// Averages the model's gradients, computed from `samples` samples; after ready(). `last`: this trainer
  /// leaves the group afterwards. The gradients are unspecified afterwards. `number`: step number of the
  /// push, if this trainer makes one.
  Result<Outcome> step(uint32_t samples, bool last, Step number);

 private:
  /// Leaves the group and joins the next one.
  Status formNextGroup();
  /// One attempt; false: the group broke before it was complete.
  Result<bool> tryForm();
  /// Broadcasts the first member's parameters and version. `counted`: whether the last step is in the model,
  /// according to the first member.
  Status broadcastModel(bool& counted);
  /// For the first member: pushes the mean and pulls the updated parameters.
  Result<PushInfo> pushMean(uint32_t samples, Step number);
  /// Whether a trainer waits for a group, as far as the daemon has reported it to the first member.
  bool wanted();

  Client& client_;
  Model& model_;
  CollectiveMaker& maker_;
  const AllReduceTerms terms_;
  std::unique_ptr<Collective> group_;      // null: no working group
  uint64_t generation_ = 0;                // of the newest group
  bool first_ = false;                     // this trainer is its first member
  Version reached_;                        // version that the previous group reached, as the daemon knows it
  std::vector<Version> basis_;             // of the parameters, if this trainer pulled them
  Version version_;                        // of the parameters
  std::optional<Pending<RoundDue>> call_;  // completes when a group is wanted; first member only
  std::string broken_;                     // why the newest group broke
};

}  // namespace psd
