#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/types/local_steps.h"
#include "trainer/client/api/client.h"

namespace psd {

/// A trainer's exchanges with the daemon under a policy of local steps: local SGD (also as SlowMo's inner
/// loop), DiLoCo, and EASGD (Zhang, Choromanska, LeCun 2015). The whole model is one fragment, exchanged
/// after each period. Owned by one thread; the client outlives it. A call whose wait
/// ClientOptions::keepWaiting has ended (interrupted) stays in flight, and the next exchange() waits for it.
///
/// With fragments (Streaming DiLoCo; Douillard et al. 2025) or a delay, local steps continue during an
/// exchange. LocalSteps defines the slots. A trainer's slot depends only on the versions of the fragments
/// that it has: all trainers exchange the fragments in the same order, whenever they joined, and cannot
/// deadlock. For a fragment split over several daemons, each with its own rounds, the version is that of the
/// first daemon. A pull starts once its push is answered, so that both overlap with local steps. Otherwise
/// the pull waits for ready(): the last exchange of a run needs none.
class FragmentExchange {
 public:
  /// Callbacks for events.
  struct Observer {
    std::function<void(const PushInfo&)> answered;  ///< a push was answered
    std::function<void()> dropped;  ///< a round closed before the result of these steps was pushed
  };

  /// `shards`: from JoinInfo.
  FragmentExchange(Client& client, const LocalSteps& local, const std::vector<ShardRange>& shards,
                   Observer observer);

  /// Pulls the parameters; called once, before the first step. Both arrays cover the whole model and must
  /// outlive all calls. `parameters`: the trainer's current values, accessed only by calls of this. `spare`:
  /// for each fragment, the values that its steps started from; during its push, the difference to these;
  /// after it, the pulled values.
  Status begin(std::span<float> parameters, std::span<float> spare);
  /// Called before each step: pulls the parameters where the last exchange has left that to it.
  Status ready();
  /// The trainer has taken a local step. `samples`: number of samples in it.
  void stepped(uint32_t samples);
  /// Steps of the run that one trainer has completed.
  uint64_t progress() const;
  /// Rounds of the run before the one that the steps are for.
  uint64_t rounds() const;
  /// By shard: the versions that the steps started from.
  const std::vector<Version>& versions() const { return basis_; }
  /// Whether exchange() has anything to do.
  bool due(bool last) const;
  /// Called after a step: applies the results of pushes and pushes the fragments that are due. With `last`,
  /// pushes everything left and applies the results.
  Status exchange(bool last);
  /// Waits for all pushes and pulls; none uses the arrays afterwards, unless a wait was ended. Returns the
  /// first error, after waiting for the others.
  Status settle();
  /// Whether all calls have ended and none uses the arrays.
  bool finished() const;

 private:
  struct Fragment {
    std::vector<ElementRange> elements;
    std::vector<size_t> shards;
    uint64_t steps = 0, samples = 0;           ///< since its last push or pull
    std::optional<Pending<PushInfo>> push;     ///< in flight
    std::optional<Pending<PullInfo>> pull;     ///< in flight: the result of the push
    bool late = false;                         ///< the push was answered with PushOutcome::late
    bool behind = false;                       ///< must be pulled: its rounds advanced without this trainer
    std::optional<Pending<PullInfo>> catchUp;  ///< in flight: that pull
    uint64_t stepsSincePush = 0;               ///< steps since the push
    std::optional<Pending<RoundDue>> due;      ///< the notification of the end of its round

    bool inFlight() const { return push || pull; }
  };

  /// Whether steps wait for an exchange, which is of the whole model.
  bool whole() const { return !local_.streams(); }
  bool elastic() const { return local_.alpha != 0; }
  /// The fragment's version, and the round that its steps are for, at the first daemon that has a part of it.
  Version versionOf(const Fragment& fragment) const { return basis_[whole() ? 0 : fragment.shards.front()]; }
  uint64_t roundOf(const Fragment& fragment) const {
    return versionOf(fragment).value + (fragment.inFlight() ? 1 : 0);
  }
  /// The first slot whose fragment is not pushed.
  uint64_t openSlot() const;
  /// Number of steps of the run before a slot.
  uint64_t stepsBefore(uint64_t slot) const;
  /// Whether the current slot's steps are taken and its fragment is not pushed.
  bool slotIsOver() const;
  /// Whether each of the fragment's shards has advanced by exactly one round since the versions `before`, by
  /// shard of the model.
  bool advancedOneRound(const Fragment& fragment, const std::vector<Version>& before) const;
  /// Handles the answered roundDue() calls of fragments that are not pushed yet: pushes for a round that is
  /// closing, and drops the steps for one that has closed.
  Status handleDueRounds();
  void requestRoundDue(uint32_t number);
  /// Pulls the whole model, from which the next steps start.
  Status restart();
  Status send(uint32_t number);
  /// EASGD: pulls the centre, and moves the parameters towards it by the difference, which is then pushed.
  Status meetCentre();
  /// Waits for the answer to a push. The steps remain to be pushed if it failed.
  Status awaitAnswer(Fragment& fragment);
  /// Waits for the answer to a push, and starts to pull the result; of a whole model in ready().
  Status answered(uint32_t number);
  /// Waits for the result of a push, and applies it to the parameters.
  Status applyResult(uint32_t number);
  /// applyResult() for all exchanges in flight, starting with this fragment.
  Status applyAllResults(uint32_t first);
  /// Pulls a fragment to the spare array.
  Pending<PullInfo> beginPull(uint32_t number);
  /// Waits for one of the fragment's pulls. Returns whether the version of any of its shards has changed.
  Result<bool> endPull(uint32_t number, std::optional<Pending<PullInfo>>& pull);
  /// Pulls the whole model to the spare array.
  Result<PullInfo> pullWhole();
  /// All fragments without an exchange in flight, except `fresh`, must be pulled.
  void fallBehind(std::optional<uint32_t> fresh = {});
  /// Pulls the fragments that are behind, and restarts from the pulled values where they have changed.
  Status catchUp();

  Client& client_;
  const LocalSteps local_;
  const Observer observer_;
  std::vector<Fragment> fragments_;
  std::span<float> parameters_, spare_;     // set by begin()
  std::vector<Version> basis_;              // see versions()
  bool restarts_ = false;                   // the next step starts from a pull
  std::optional<Pending<PullInfo>> whole_;  // in flight: a pull of the whole model
  uint64_t pushes_ = 0;                     // number of pushes started
  uint64_t slot_ = 0;
  uint64_t stepsOfSlot_ = 0;
};

}  // namespace psd
