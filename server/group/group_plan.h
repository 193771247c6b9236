#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>

#include "server/engine/engine.h"
#include "server/plan/plan.h"
#include "server/replica/plan_view.h"

namespace psd {

/// The plan in the engine, as a daemon sees it whose model is of one group. A run that is over makes room for
/// the next one: no daemon serves in its plan. If the engine loses its data, its revisions restart;
/// those of the views still rise. Owned by the control loop's thread; its promises do not
/// outlive it.
class GroupPlan {
 public:
  /// `addresses`: where others reach this daemon, `me`. The engine outlives it.
  GroupPlan(Engine& engine, std::string key, DaemonId me, std::vector<Address> addresses);

  /// What came of a swap, and the plan after it.
  struct Outcome {
    bool won = false;
    PlanView plan;
  };
  /// The plan as it is now. An Error: the engine does not answer, or the document is none that this psd
  /// knows.
  kj::Promise<Result<PlanView>> read();
  /// The plan once it has changed since it was last seen here. Errors are those of read().
  kj::Promise<Result<PlanView>> changed();
  /// Changes the plan as a GroupState wants it; `standbyAt`: where a standby that is added is reached. An
  /// Error means that it is not known what came of it, never that it did not happen.
  kj::Promise<Result<Outcome>> swap(uint64_t expectedRevision, const PlanView& wanted,
                                    const std::vector<Address>& standbyAt);
  /// Writes down that the model has moved, where the plan names this daemon as primary. `unknown`: it may
  /// have come to that, or may come to it yet; asked again it says more.
  enum class Moving : uint8_t { counts, stays, unknown };
  kj::Promise<Moving> moveAway(PlannedMove moved);
  /// Writes down that the run is over, whatever the plan has become meanwhile; nothing where there is none.
  /// Called by the daemon that serves. `saved`: it keeps the model on its disk.
  kj::Promise<Status> end(bool saved);

  /// As it was last seen:

  /// Whether the run of the plan is over, by the word of a daemon that served in it.
  bool ended() const { return plan_ && plan_->ended && !plan_->fromFolder(); }
  /// How the model has moved to other daemons; null: it has not.
  const PlannedMove* moved() const { return plan_ && plan_->moved ? &*plan_->moved : nullptr; }
  /// Why the engine did not answer, or not with a plan, when it was asked last; empty: it did.
  std::string trouble() const {
    std::string silent = engine_.trouble();
    return silent.empty() ? trouble_ : silent;
  }
  std::vector<Address> addressesOf(DaemonId daemon) const;
  /// Of all daemons that the plan knows.
  std::vector<Address> addressesOfAll() const;
  /// Where the primary is, for people.
  std::string primaryAddress() const;
  /// The first address of a daemon of the plan, as text.
  std::string addressOf(DaemonId daemon) const;
  const std::string& key() const { return key_; }

 private:
  /// What was known when something was asked.
  struct Asked {
    uint64_t losses = 0, news = 0;
  };
  Asked asked() const { return {losses_, news_}; }
  Result<PlanView> take(const Result<Stored>& stored, Asked asked);
  PlanView view() const;
  Result<Plan> planFor(const PlanView& wanted, const std::vector<Address>& standbyAt) const;
  /// Whether no daemon of a run has written a plan: there is none, or only a folder's record.
  bool gone() const { return !plan_ || plan_->fromFolder(); }

  Engine& engine_;
  const std::string key_;
  const DaemonId me_;
  const std::vector<Address> addresses_;
  std::optional<Plan> plan_;
  uint64_t revision_ = 0;
  std::optional<Plan> last_;  // the newest one that was there, of a run that goes on
  uint64_t losses_ = 0;       // how often the engine lost what it held
  uint64_t news_ = 0;         // how often another revision was seen
  uint64_t before_ = 0;       // what is added to a revision, so that it is above all from before the loss
  std::string trouble_;       // why what the engine holds is no plan, or is gone
};

}  // namespace psd
