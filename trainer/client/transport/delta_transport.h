#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/codec/codec.h"
#include "trainer/client/transport/message_transport.h"

namespace psd {

/// Pulls, in messages, what has changed since the previous pull, encoded in few bits. Keeps a copy of the
/// pulled values, to which the daemon's differences are added; all trainers have the same copy. Each
/// connection starts with an empty one. Belongs to its event loop.
class DeltaTransport final : public SliceTransport {
 public:
  /// `codec`: of the differences. `messages` outlives this object.
  DeltaTransport(MessageTransport& messages, const Codec& codec) : messages_(messages), codec_(codec) {}

  const char* name() const override { return messages_.name(); }
  bool canPush() const override { return false; }
  bool canPull() const override { return messages_.canPull(); }
  bool encodes() const override { return true; }
  kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                const SliceValues& values) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, std::span<float> into) override;

 private:
  struct Held {
    uint64_t view = 0;  // 0: none
    Version version;
    std::vector<float> values;
    bool pulling = false;  // a pull of the slice is in progress, which alone changes this
  };
  /// Writes the result of a pull to `into`. `held`: to be updated; null: another pull of the slice is in
  /// progress.
  Result<SlicePulled> take(const MessageTransport::PulledDelta& pulled, Held* held,
                           std::span<float> into) const;

  MessageTransport& messages_;
  const Codec& codec_;
  std::map<uint64_t, Held> held_;  // by the slice's begin in the arena
};

}  // namespace psd
