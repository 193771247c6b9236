#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// The subcommands for what a daemon leaves on the disk; none needs a daemon. Each prints to standard output
/// and blocks.

/// `psd export`: a checkpoint's tensors, or where `table` names one an embedding table, as one safetensors
/// file. `path`: a checkpoint, or a folder with some, of which the newest whole one is taken.
Status exportModel(Env& env, const std::string& path, const std::string& table, const std::string& to);

/// `psd replay`: the model after update `until` of each shard (nothing: the last), from the checkpoints and
/// the log in `folder`. With `to` (empty: none) written as one safetensors file.
Status replay(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to);

}  // namespace psd
