#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/types/local_steps.h"
#include "trainer/client/client.h"

namespace psd {

/// A trainer's exchanges with the daemon under DiLoCo in fragments (Streaming DiLoCo; Douillard et al. 2025),
/// or with steps that go on while an exchange is under way. LocalSteps tells of slots. Which slot a trainer
/// is in follows from the versions of the fragments that it has, and from nothing else: so all trainers
/// exchange the fragments in the same order, whenever they came, and none waits for one that waits for it. Of
/// a fragment that several daemons have, each in rounds of its own, the version is that of the first of them.
/// A pull begins as soon as it is known that the push is answered, so that both travel while the steps go on.
/// Owned by one thread, like the client, which outlives its use.
class FragmentExchange {
 public:
  /// What happened to tell of.
  struct Observer {
    std::function<void(const PushInfo&)> answered;  ///< a push
    std::function<void()> dropped;  ///< a round closed before what these steps came to was pushed
  };

  /// `shards`: as JoinInfo has them.
  FragmentExchange(Client& client, const LocalSteps& local, const std::vector<ShardRange>& shards,
                   Observer observer);

  /// Brings the parameters; once, before the first step. Both arrays are of the whole model, and stay until
  /// all calls have finished. `parameters`: what the trainer is at, which is read and written in exchange()
  /// alone. `spare`: of a fragment what it began with, while its push is under way the difference to that,
  /// and after it what is pulled.
  Status begin(std::span<float> parameters, std::span<float> spare);
  /// The trainer has taken a step. `samples`: behind it.
  void stepped(uint32_t samples);
  /// Steps of the run, of one trainer, that are behind it.
  uint64_t progress() const;
  /// Whether exchange() has anything to do.
  bool due(bool last) const;
  /// After a step: takes over what came of pushes, and pushes what is due. With `last` all that is left is
  /// pushed, and taken over.
  Status exchange(bool last);
  /// Waits for all pushes and pulls, after which none uses the arrays. The first error ends nothing.
  Status settle();
  /// Whether no call uses the arrays any more.
  bool finished() const;

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

  /// The version of the fragment's round, and of the one that its steps are for, at the first daemon that has
  /// a part of it.
  Version versionOf(const Fragment& fragment) const { return basis_[fragment.shards.front()]; }
  uint64_t roundOf(const Fragment& fragment) const {
    return versionOf(fragment).value + (fragment.underWay() ? 1 : 0);
  }
  /// The first slot of which the fragment is not pushed.
  uint64_t openSlot() const;
  /// Steps of the run before a slot.
  uint64_t beginOf(uint64_t slot) const;
  /// Its steps are taken, and its fragment is not pushed.
  bool slotIsOver() const;
  /// Whether each of its shards has had one round since the versions `before`, of all.
  bool hadOneRound(const Fragment& fragment, const std::vector<Version>& before) const;
  /// How the rounds stand for those whose fragment was not pushed yet, as far as that is known: drops what a
  /// closed one leaves no place for, and pushes for one that closes.
  Status heed();
  void askWhenDue(uint32_t number);
  Status send(uint32_t number);
  /// Waits for the answer to a push, and begins to pull what came of it.
  Status answered(uint32_t number);
  /// Waits for that, and takes it over.
  Status takeOver(uint32_t number);
  /// All that is under way, from this fragment on.
  Status takeOverAll(uint32_t first);
  /// Pulls a fragment to the spare array.
  Pending<PullInfo> beginPull(uint32_t number);
  /// Waits for it, and gives whether any of the fragment's shards is another version than before.
  Result<bool> endPull(uint32_t number, Pending<PullInfo> pull);
  /// Brings all fragments of which nothing is under way, but for `fresh`, and goes on with those that have
  /// changed.
  Status catchUp(std::optional<uint32_t> fresh = {});

  Client& client_;
  const LocalSteps local_;
  const Observer observer_;
  std::vector<Fragment> fragments_;
  std::span<float> parameters_, spare_;  // from begin() on
  std::vector<Version> basis_;           // by shard, of what the steps began with
  uint64_t pushes_ = 0;                  // begun
  uint64_t slot_ = 0;
  uint64_t stepsOfSlot_ = 0;
};

}  // namespace psd
