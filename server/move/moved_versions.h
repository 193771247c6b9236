#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/safetensors/combined_version.h"
#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "server/publish/version_store.h"

// Published versions that move from several daemons, or to several.

namespace psd {

/// A published version as the daemons to which it moves hold it: a single one the file of the whole version,
/// several their parts of it. Immutable.
class MovedVersion {
 public:
  /// `files`: those of the sources, in order. `targets`: the partition of the model that each target has.
  /// `seed`: see partHistory(). ErrorCode::io if a file is damaged, modelMismatch if the parts are not of one
  /// moment, overloaded without memory for the whole version beside the files. Blocks.
  static Result<std::shared_ptr<const MovedVersion>> make(std::vector<std::vector<std::byte>> files,
                                                          const std::vector<ModelSpec>& targets,
                                                          uint64_t seed);

  /// What a target receives: its file is `head` and then `values`.
  struct File {
    std::string_view head;
    std::span<const std::byte> values;
  };
  File at(size_t target) const;
  const VersionInfo& info() const { return info_; }

 private:
  VersionInfo info_;
  std::vector<std::byte> whole_;
  std::optional<SplitVersion> split_;  // nullopt: there is one target
};

/// How the versions `numbers`, which all sources have, continue at one of the targets. `sources`: what each
/// of them says, the lead first. `seed`: of MovedVersion.
VersionsContinuation continuationAt(Partition target, std::span<const VersionsContinuation> sources,
                                    const std::vector<uint64_t>& numbers, uint64_t seed);

}  // namespace psd
