#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "test/simulation/schedules.h"

namespace psd::testing {

/// Machines, and a network between them that is slow at times and can be cut in each direction separately.
/// Owned by one thread.
class ReplicaNetwork {
 public:
  static constexpr size_t kPlaces = 8;
  static constexpr size_t kEngine = 3, kTrainers = 4;             // below: daemons of the replica set
  static constexpr size_t kTarget = 5, kOther = 6, kCommand = 7;  // of a move

  ReplicaNetwork(Random& random, VirtualTime& time) : random_(random), time_(time) {}

  bool open(size_t from, size_t to) const { return cuts_[from][to] == 0; }
  bool openBothWays(size_t one, size_t other) const { return open(one, other) && open(other, one); }
  /// Drops everything from one to the other for `ms`.
  void cut(size_t from, size_t to, uint64_t ms) {
    if (from == to) return;
    cuts_[from][to]++;
    after(ms, [this, from, to, healings = healings_] { cuts_[from][to] -= healings == healings_; });
  }
  void heal() {
    cuts_ = {};
    healings_++;
  }

  uint64_t delay() {
    static constexpr std::array<uint64_t, 5> kDelays{1, 1, 2, 5, 20};
    return kDelays[random_.below(kDelays.size())];
  }
  void after(uint64_t ms, std::function<void()> event) {
    time_.after(std::chrono::milliseconds(ms), std::move(event));
  }
  /// A single message: lost if the path is cut when it is sent or when it would arrive.
  void send(size_t from, size_t to, uint64_t ms, std::function<void()> arrival) {
    if (!open(from, to)) return;
    after(ms, [this, from, to, arrival = std::move(arrival)] {
      if (open(from, to)) arrival();
    });
  }

  Random& random() { return random_; }
  TimePoint now() const { return time_.now(); }

 private:
  Random& random_;
  VirtualTime& time_;
  std::array<std::array<uint32_t, kPlaces>, kPlaces> cuts_{};
  uint32_t healings_ = 0;
};

/// A connection between two processes with TCP's semantics: data arrives in order and without gaps; a cut
/// delays or breaks it; each end detects the other's end at a different time, or late. Its ends hold it; so
/// does an event of it.
class ReplicaConnection : public std::enable_shared_from_this<ReplicaConnection> {
 public:
  using Event = std::function<void()>;

  /// `gone[i]`: notifies end i, once, that the connection was ended by another cause.
  ReplicaConnection(ReplicaNetwork& network, std::array<size_t, 2> places, std::array<Event, 2> gone)
      : network_(network), places_(places), gone_(std::move(gone)) {}

  bool open(size_t end) const { return open_[end]; }

  /// From `end` to the other one.
  void send(size_t end, Event arrival) {
    if (!open_[end]) return;
    auto& queue = queues_[end];
    const TimePoint due = network_.now() + std::chrono::milliseconds(network_.delay());
    queue.push_back({queue.empty() ? due : std::max(due, queue.back().due), std::move(arrival)});
    if (queue.size() == 1) pumpAt(end, queue.front().due);
  }

  /// `end` closes, or dies: the other one is notified after what was sent before, or far later.
  void close(size_t end) {
    if (!open_[end]) return;
    const bool told = network_.open(places_[end], places_[1 - end]);
    if (told) send(end, [] {});
    open_[end] = false;
    leave(1 - end, told ? network_.random().between(1, 20) : network_.random().between(50, 500));
  }

 private:
  struct Message {
    TimePoint due;
    Event arrival;
  };

  void leave(size_t end, uint64_t ms) {
    network_.after(ms, [self = shared_from_this(), end] {
      if (!std::exchange(self->open_[end], false)) return;
      self->gone_[end]();
    });
  }

  void pumpAt(size_t end, TimePoint due) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(due - network_.now()).count();
    network_.after(static_cast<uint64_t>(std::max<int64_t>(ms, 0)),
                   [self = shared_from_this(), end] { self->pump(end); });
  }

  void pump(size_t end) {
    auto& queue = queues_[end];
    if (queue.empty()) return;
    if (!network_.open(places_[end], places_[1 - end])) {
      if (!network_.random().oneIn(8)) return pumpAt(end, network_.now() + std::chrono::milliseconds(20));
      queue.clear();  // broken: nothing more arrives, and each end detects that on its own
      broken_ = true;
      leave(0, network_.random().between(1, 300));
      leave(1, network_.random().between(1, 300));
      return;
    }
    while (!queue.empty() && queue.front().due <= network_.now()) {
      Message message = std::move(queue.front());
      queue.pop_front();
      if (open_[1 - end] && !broken_) message.arrival();
    }
    if (!queue.empty()) pumpAt(end, queue.front().due);
  }

  ReplicaNetwork& network_;
  const std::array<size_t, 2> places_;
  const std::array<Event, 2> gone_;
  std::array<bool, 2> open_{true, true};
  bool broken_ = false;
  std::array<std::deque<Message>, 2> queues_;
};

}  // namespace psd::testing
