#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/os/env.h"
#include "common/patch/content_sum.h"
#include "common/status/status.h"

namespace psd {

/// The patches between versions: a file beside each version that has one, from the version before it, and
/// their unions, which are made when a reader asks. Thread-safe; every method may block.
class VersionPatches {
 public:
  VersionPatches(std::shared_ptr<Env> env, std::string folder)
      : env_(std::move(env)), folder_(std::move(folder)) {}

  /// Finds the patches that lead to these versions, and removes other files of patches.
  void load(const std::vector<uint64_t>& numbers);
  /// Makes the patch from version `from` to version `to`, whose files are complete, if it has at most `most`
  /// bytes. `values`: of all tensors of `to`, as in its file. Returns its size; 0: there is none. Called by
  /// one thread.
  Result<uint64_t> make(uint64_t from, uint64_t to, std::span<const std::byte> values, uint64_t most);
  /// Keeps a patch that was made elsewhere and has been applied, under the terms of make(). 0: it leads
  /// from or to another version.
  Result<uint64_t> keep(uint64_t from, uint64_t to, std::span<const std::byte> patch, uint64_t most);
  /// Removes all patches. Called by the thread of make().
  void clear();
  /// Removes the patch that leads to a version.
  void remove(uint64_t number);
  /// Size of the patch that leads to a version from the one before it; 0: there is none.
  uint64_t bytesOf(uint64_t number) const;
  /// Size of the patch from one version to another; 0: there is none that is less than half as large as the
  /// version, or versions between them are gone.
  Result<uint64_t> size(uint64_t from, uint64_t to);
  /// Fills `into` with the bytes of that patch from `offset` on. ErrorCode::notReady: there is none.
  /// badSlice.
  Status read(uint64_t from, uint64_t to, uint64_t offset, std::span<std::byte> into);

 private:
  struct Patch {
    uint64_t from = 0, bytes = 0;
  };
  using Ends = std::pair<uint64_t, uint64_t>;
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  std::string path(uint64_t number) const;
  /// Appends the patch to `out`. ErrorCode::overloaded: it is larger than `most`.
  Status encode(uint64_t from, uint64_t to, std::span<const std::byte> values, uint64_t most,
                std::vector<std::byte>& out);
  /// Writes the file of a patch; returns its size.
  Result<uint64_t> write(uint64_t from, uint64_t to, std::span<const std::byte> patch);
  /// The numbers that patches lead to from `from` to `to`, in order; empty: they do not.
  std::vector<uint64_t> chain(uint64_t from, uint64_t to) const;
  /// The union of several patches; null: it is too large, or one of them is damaged.
  Result<Bytes> unionOf(uint64_t from, uint64_t to);
  Result<Bytes> join(const std::vector<uint64_t>& chain);

  const std::shared_ptr<Env> env_;
  const std::string folder_;
  // Used by the thread of make(): the sums of a version's tensors.
  uint64_t sumsOf_ = 0;
  std::vector<ContentSum> sums_;

  std::mutex joining_;                        // one union is made at a time; taken before mutex_
  mutable std::mutex mutex_;                  // guards the members below
  std::map<uint64_t, Patch> patches_;         // by the number that they lead to
  std::list<std::pair<Ends, Bytes>> recent_;  // unions, the one used last first
};

}  // namespace psd
