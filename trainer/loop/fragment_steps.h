#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/types/local_steps.h"
#include "trainer/client/client.h"
#include "trainer/loop/inner_steps.h"
#include "trainer/model/model.h"

namespace psd {

/// A trainer's steps by itself and its exchanges with the daemon under DiLoCo in fragments (Streaming DiLoCo;
/// Douillard et al. 2025), or with steps that go on while an exchange is under way. LocalSteps tells of
/// slots. Which slot a trainer is in follows from the versions of the fragments that it has, and from nothing
/// else: so all trainers exchange the fragments in the same order, whenever they came, and none waits for one
/// that waits for it. A pull begins as soon as it is known that the push is answered, so that both travel
/// while the steps go on. Owned by one thread, like the client and the model, which outlive it; the model has
/// spare parameters: of a fragment what it began with, and while its push is under way the difference to
/// that.
class FragmentSteps {
 public:
  /// What happened to tell of.
  struct Observer {
    std::function<void(const PushInfo&)> answered;  ///< a push
    std::function<void()> dropped;  ///< a round closed before what these steps came to was pushed
  };

  /// `shards`: as JoinInfo has them.
  FragmentSteps(Client& client, Model& model, const LocalSteps& local, const std::vector<ShardRange>& shards,
                Observer observer);

  /// Before the first step: brings the parameters.
  Status begin();
  /// Changes the parameters by the model's gradients. `samples`: behind them. Gives the step's rate.
  double step(uint32_t samples);
  /// After a step: takes over what came of pushes, and pushes what is due. With `last` all that is left is
  /// pushed, and taken over.
  Status exchange(bool last);
  /// Waits for all pushes and pulls, after which none uses the model's arrays. The first error ends nothing.
  Status settle();

 private:
  struct Fragment {
    std::vector<ElementRange> elements;
    std::vector<size_t> shards;
    uint64_t steps = 0, samples = 0;        ///< since it was last pushed, or brought
    std::optional<Pending<PushInfo>> push;  ///< under way
    std::optional<Pending<PullInfo>> pull;  ///< under way, of what came of the push
    bool late = false;                      ///< the push was answered so
    uint64_t sinceSent = 0;                 ///< steps
    std::optional<Pending<RoundDue>> due;   ///< that tells of the end of its round

    bool underWay() const { return push || pull; }
  };

  /// The version of the fragment's round, and of the one that its steps are for.
  Version versionOf(const Fragment& fragment) const { return basis_[fragment.shards.front()]; }
  uint64_t roundOf(const Fragment& fragment) const {
    return versionOf(fragment).value + (fragment.underWay() ? 1 : 0);
  }
  /// The first slot of which the fragment is not pushed.
  uint64_t openSlot() const;
  /// How the rounds stand for those whose fragment was not pushed yet, as far as that is known: drops what a
  /// closed one leaves no place for, and pushes for one that closes.
  Status heed();
  void askWhenDue(uint32_t number);
  Status send(uint32_t number);
  /// Waits for the answer to a push, and begins to pull what came of it.
  Status answered(uint32_t number);
  /// Waits for that, and takes it over.
  Status takeOver(uint32_t number);
  /// Pulls a fragment to the spare parameters.
  Pending<PullInfo> beginPull(uint32_t number);
  /// Waits for it, and gives whether the fragment is another version than before.
  Result<bool> endPull(uint32_t number, Pending<PullInfo> pull);
  /// Brings all fragments of which nothing is under way, but for `fresh`, and goes on with those that have
  /// changed.
  Status catchUp(std::optional<uint32_t> fresh = {});
  Error explain(const Error& refusal);

  Client& client_;
  Model& model_;
  const LocalSteps local_;
  const InnerOptimizer optimizer_;
  const Observer observer_;
  InnerSteps inner_;
  std::vector<Fragment> fragments_;
  std::vector<Version> basis_;  // by shard, of what the steps began with
  bool begun_ = false;
  uint64_t pushes_ = 0;  // begun
  uint64_t slot_ = 0;
  uint64_t stepsOfSlot_ = 0;
};

}  // namespace psd
