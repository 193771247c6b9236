#pragma once

#include <array>

#include "server/policy/all_reduce.h"
#include "server/policy/async_diloco.h"
#include "server/policy/bounded_staleness.h"
#include "server/policy/diloco.h"
#include "server/policy/easgd.h"
#include "server/policy/hogwild.h"
#include "server/policy/local_sgd.h"
#include "server/policy/locked.h"
#include "server/policy/policy_config.h"
#include "server/policy/sync.h"

namespace psd {

/// Every update policy that a config can name. A new one is its own file and one line here.
inline constexpr std::array kPolicyList = {
    PolicyEntry{"hogwild",
                "updates race element by element, no lock around them",
                {.readsLive = true, .recordsUpdates = true, .tables = true, .differences = true},
                Hogwild::read},
    PolicyEntry{"locked",
                "updates and reads see each shard whole",
                {.recordsUpdates = true, .tables = true, .differences = true},
                Locked::read},
    PolicyEntry{"bounded_staleness",
                "nobody gets far ahead of the slowest trainer",
                {.recordsUpdates = true, .tables = true, .differences = true},
                BoundedStaleness::read},
    PolicyEntry{"sync",
                "rounds: all gradients become one update",
                {.recordsUpdates = true, .rounds = true, .tables = true},
                Sync::read},
    PolicyEntry{"easgd",
                "trainers step by themselves, and are drawn to a common centre",
                {.recordsUpdates = true},
                Easgd::read},
    PolicyEntry{"local_sgd",
                "trainers step by themselves, and rounds bring them together",
                {.recordsUpdates = true, .rounds = true},
                LocalSgd::read},
    PolicyEntry{"diloco",
                "trainers step by themselves, and rounds step with what came of it",
                {.recordsUpdates = true, .rounds = true},
                Diloco::read,
                Diloco::readInGroup},
    PolicyEntry{"async_diloco",
                "trainers step by themselves, and what each comes to is a step at once",
                {.recordsUpdates = true},
                AsyncDiloco::read},
    PolicyEntry{"allreduce",
                "trainers average their gradients among themselves, one of them pushes the average",
                {.recordsUpdates = true, .rounds = true},
                AllReduce::read},
};

}  // namespace psd
