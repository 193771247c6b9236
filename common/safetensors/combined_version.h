#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/safetensors/published_version.h"
#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "common/types/version_info.h"

// Several daemons that serve a model publish its parts. The parts of one moment make a whole version.

namespace psd {

/// The history of the versions that are made of parts of these histories; another one for every other list.
uint64_t combinedHistory(std::span<const uint64_t> histories);
/// VersionInfo::history of the whole version that these parts make.
uint64_t wholeHistory(std::span<const VersionInfo> parts);

/// The whole versions of which every daemon has its part, ascending: the parts have the same number and
/// moment. `lists`: by daemon, the versions that it has. VersionInfo::bytes is the sum of the parts.
std::vector<VersionInfo> commonVersions(std::span<const std::vector<VersionInfo>> lists);

/// The number of the newest of these versions, which ascend; 0: there is none.
uint64_t newestNumber(const std::vector<VersionInfo>& versions);
/// The daemon that is furthest behind.
size_t lastDaemon(std::span<const std::vector<VersionInfo>> lists);
/// ErrorCode::notReady: why there is no whole version `number`; 0: none at all.
Error noCommonVersion(std::span<const std::vector<VersionInfo>> lists, uint64_t number);

/// The whole version of one moment, from its parts: one .safetensors file with all tensors of the model, in
/// its order, also those that are divided between daemons. Its metadata is that of a version, and has the
/// histories of the parts. Of parts that SplitVersion has made it is the file that was split. Immutable.
class WholeVersion {
 public:
  /// `files`: those of all daemons in order, verified; they must outlive the object. ErrorCode::modelMismatch
  /// if they are not the parts of one moment, as when a daemon has replaced its part meanwhile;
  /// invalidArgument if they are, and make no model; io if the header of the whole version in them is
  /// damaged.
  static Result<WholeVersion> join(std::vector<std::span<const std::byte>> files);

  /// `bytes` is the size of the file.
  const VersionInfo& info() const { return info_; }
  /// Writes the file to memory of that size.
  void writeTo(std::span<std::byte> file) const;

 private:
  /// Makes the header. `before`: that of the file that the parts were cut of, by part.
  Status describe(const std::vector<VersionInfo>& parts, const std::vector<SafetensorsEntry>& tensors,
                  const std::vector<std::string>& before);

  VersionInfo info_;
  std::string head_;
  std::vector<std::span<const std::byte>> values_;  // by daemon
};

/// The parts of a whole version for several daemons: with its number, step, time, moment and bytes, and with
/// the header of its file, which is in all of them. Immutable.
class SplitVersion {
 public:
  /// The file of a part.
  struct Part {
    std::string head;
    std::span<const std::byte> values;  ///< of the file that was split
  };

  /// `file`: verified; it must outlive the object. `partitions`: those of its model, at least two. `seed`:
  /// for partHistory(). ErrorCode::modelMismatch if the model has other tensors than the version.
  static Result<SplitVersion> split(std::span<const std::byte> file, const std::vector<ModelSpec>& partitions,
                                    uint64_t seed);

  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
};

/// The history of daemon `part` whose versions continue the whole versions of `history`; another one for each
/// seed.
uint64_t partHistory(uint64_t history, uint32_t part, uint64_t seed);

}  // namespace psd
