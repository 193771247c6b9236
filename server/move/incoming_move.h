#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kj/async.h>

#include "common/os/env.h"
#include "server/coordination/coordinator.h"
#include "server/hosting/parameter_host.h"
#include "server/loop/background.h"
#include "server/move/move_mark.h"
#include "server/replica/image_stream.h"
#include "server/replica/memory_files.h"

namespace psd {

/// Who was in at the daemons that had the model before. A value type.
struct MovedTrainers {
  Departed departed;     ///< those that have come and gone
  std::set<Rank> ranks;  ///< of those that are about to come
};

/// How a model comes to this daemon from others: their parts, the partition made of them, and that it counts.
/// In between nobody is let in. What was made stays though the operator's command is gone, since the daemons
/// of before may know that the move is done; whoever begins another move has asked them.
///
/// Owned by the control loop's thread, on which every method is called.
class IncomingMove final {
 public:
  /// The others outlive it.
  /// `reloading`: whether a change of the configuration is under way.
  IncomingMove(Coordinator& coordinator, ParameterHost& host, Env& env, const DaemonConfig& config,
               std::function<bool()> reloading)
      : coordinator_(coordinator),
        host_(host),
        env_(env),
        config_(config),
        reloading_(std::move(reloading)) {}

  /// Looks whether what the folder holds is of a move that is not known to be done. Blocks; at the start.
  Status look();
  /// Why nobody is let in; nothing where there is no such move.
  std::optional<Error> turnedAway() const;
  /// Parts come, or are put in place.
  bool underWay() const { return receiving_ != 0; }

  /// A move begins, from so many daemons. See Admin.arrive in the schema.
  Status begin(uint64_t move, uint32_t parts);
  /// A piece of what one of them has, and that all of it is here.
  Status image(uint64_t move, uint32_t part, const ImagePart& piece);
  Status imageDone(uint64_t move, uint32_t part, const std::string& path);
  /// Puts this daemon's partition in place, and on the disk, where it is to be. Gives how many rows it has.
  kj::Promise<Result<uint64_t>> settle(uint64_t move, MovedTrainers trainers);
  /// The move is done: trainers may come. Nothing where it is known.
  kj::Promise<Status> commit(uint64_t move);
  /// The operator's command is gone: what is not in place is forgotten.
  void abandon(uint64_t move);

 private:
  kj::Promise<Status> takeIn(uint64_t move, ParameterHost::Arrived arrived);
  /// Of what was to be put in place nothing stays, neither here nor on the disk.
  kj::Promise<Result<uint64_t>> undo(Error why);
  void open(uint64_t move);
  Status checkUnderWay(uint64_t move) const;

  Coordinator& coordinator_;
  ParameterHost& host_;
  Env& env_;
  const DaemonConfig& config_;
  const std::function<bool()> reloading_;
  uint64_t receiving_ = 0;  // the move of which parts come
  uint64_t placed_ = 0,
           committed_ = 0;  // the move whose partition is here, and which may not count; which does
  bool settling_ = false;
  std::shared_ptr<MemoryFiles> files_;
  std::vector<std::string> paths_;         // by part; empty: it is not here
  std::optional<MovedTrainers> trainers_;  // nothing: the coordinator knows what the folder tells
  kj::Maybe<kj::ForkedPromise<Status>> committing_;
  kj::Promise<void> forgetting_ = kj::READY_NOW;  // committing_, once it is through
  Background background_;
};

}  // namespace psd
