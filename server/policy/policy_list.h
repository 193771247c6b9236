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

/// Every update policy that a configuration can select. A new policy is one file of its own and one entry
/// here.
inline constexpr std::array kPolicyList = {
    PolicyEntry{"hogwild",
                "lock-free updates that race element by element",
                {.readsLive = true, .recordsUpdates = true, .tables = true, .differences = true},
                Hogwild::read},
    PolicyEntry{"locked",
                "updates and reads are atomic per shard",
                {.recordsUpdates = true, .tables = true, .differences = true},
                Locked::read},
    PolicyEntry{"bounded_staleness",
                "locked, and no trainer gets far ahead of the slowest one",
                {.recordsUpdates = true, .tables = true, .differences = true},
                BoundedStaleness::read},
    PolicyEntry{"sync",
                "synchronous rounds: the gradients of all trainers form one update",
                {.recordsUpdates = true, .rounds = true, .tables = true},
                Sync::read},
    PolicyEntry{"easgd",
                "trainers take local steps and are pulled towards a common center",
                {.recordsUpdates = true},
                Easgd::read},
    PolicyEntry{"local_sgd",
                "trainers take local steps, and rounds average their parameters",
                {.recordsUpdates = true, .rounds = true},
                LocalSgd::read},
    PolicyEntry{"diloco",
                "trainers take local steps, and each round is an outer optimizer step",
                {.recordsUpdates = true, .rounds = true},
                Diloco::read,
                Diloco::readInGroup},
    PolicyEntry{"async_diloco",
                "trainers take local steps, and each push is an outer optimizer step",
                {.recordsUpdates = true},
                AsyncDiloco::read},
    PolicyEntry{"allreduce",
                "trainers average gradients among themselves, and one of them pushes the average",
                {.recordsUpdates = true, .rounds = true},
                AllReduce::read},
};

}  // namespace psd
