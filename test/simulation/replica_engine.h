#pragma once

#include <functional>
#include <map>
#include <utility>

#include "server/replica/cluster_view.h"
#include "test/simulation/replica_network.h"

namespace psd::testing {

/// The engine: one register with compare-and-swap, at times unavailable, whose requests and answers are slow
/// or lost. Owned by one thread.
class ReplicaEngine {
 public:
  explicit ReplicaEngine(ReplicaNetwork& network) : network_(network) {}

  const ClusterView& plan() const { return plan_; }
  bool away() const { return away_; }
  void setAway(bool away) { away_ = away; }

  /// `answer(won, plan)`. `whatever`: regardless of the revision.
  void swap(size_t from, uint64_t expected, const ClusterView& wanted, bool whatever,
            std::function<void(bool, const ClusterView&)> answer) {
    network_.send(from, ReplicaNetwork::kEngine, delay(), [=, this, losses = losses_] {
      if (away_ || losses != losses_) return;
      const bool wins = whatever || plan_.revision == expected;
      if (wins) write(wanted);
      reply(from, [answer, wins, plan = plan_] { answer(wins, plan); });
    });
  }
  void read(size_t from, std::function<void(const ClusterView&)> answer) {
    network_.send(from, ReplicaNetwork::kEngine, delay(), [=, this, losses = losses_] {
      if (!away_ && losses == losses_) reply(from, [answer, plan = plan_] { answer(plan); });
    });
  }
  /// The primary `id` ends its run.
  void end(size_t from, DaemonId id, bool saved) {
    network_.send(from, ReplicaNetwork::kEngine, delay(), [=, this, losses = losses_] {
      if (away_ || losses != losses_ || plan_.vacant() || plan_.primary != id) return;
      write({.ended = EndedRun{plan_.term, plan_.primary, plan_.standby, saved}});
    });
  }
  /// Records that the model has moved, if the document has that revision and names `id`. `answer(plan)`: the
  /// document after it.
  void moveAway(size_t from, uint64_t expected, DaemonId id, uint64_t move,
                std::function<void(const ClusterView&)> answer) {
    network_.send(from, ReplicaNetwork::kEngine, delay(), [=, this, losses = losses_] {
      if (away_ || losses != losses_) return;
      if (plan_.revision == expected && plan_.primary == id) {
        moves_[expected + 1] = move;
        write({.ended = EndedRun{plan_.term, plan_.primary, plan_.standby, true}});
      }
      reply(from, [answer, plan = plan_] { answer(plan); });
    });
  }
  /// The move that a document of that revision records; 0: none.
  uint64_t movedBy(const ClusterView& plan) const {
    const auto found = moves_.find(plan.revision);
    return found == moves_.end() ? 0 : found->second;
  }
  /// Another replica set's part of the document changes.
  void touch() {
    if (!plan_.vacant()) write(plan_);
  }
  /// Its content is lost, and pending requests get no answer.
  void lose() {
    losses_++;
    plan_ = {.revision = plan_.revision + 1};
  }
  /// Called after each swap, with the previous content.
  void whenWritten(std::function<void(const ClusterView&)> hook) { hook_ = std::move(hook); }

 private:
  uint64_t delay() {
    Random& random = network_.random();
    return random.oneIn(10) ? random.between(20, 250) : network_.delay();
  }
  void reply(size_t to, std::function<void()> answer) {
    if (network_.random().oneIn(20)) return;
    network_.send(ReplicaNetwork::kEngine, to, network_.delay(),
                  [this, losses = losses_, answer = std::move(answer)] {
                    if (losses == losses_) answer();
                  });
  }
  void write(const ClusterView& wanted) {
    const ClusterView before = plan_;
    plan_ = wanted;
    plan_.revision = before.revision + 1;
    if (hook_) hook_(before);
  }

  ReplicaNetwork& network_;
  ClusterView plan_;
  bool away_ = false;
  uint64_t losses_ = 0;
  std::map<uint64_t, uint64_t> moves_;  // by revision
  std::function<void(const ClusterView&)> hook_;
};

}  // namespace psd::testing
