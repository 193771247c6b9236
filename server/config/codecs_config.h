#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/codec/codec.h"
#include "common/config/object_reader.h"
#include "server/config/parameter_groups.h"

namespace psd {

/// Which codecs trainers may use in one direction. A value type.
struct CodecRule {
  std::vector<std::string> allowed;  ///< names
  std::string fallback = "none";     ///< with options: what a trainer uses that asks for none in particular

  /// The codec for a trainer that asks for `spec` (a peer's text; empty: the fallback). The error names what
  /// is allowed.
  Result<std::shared_ptr<const Codec>> choose(std::string_view spec) const;
};

struct CodecsConfig {
  CodecRule push;  ///< gradients
  CodecRule pull;  ///< parameters
};

/// Whether gradients may come in `codec`. ErrorCode::invalidArgument where it adds a momentum of its own to
/// that of an optimizer, or to what a local policy's trainers push, which is no gradient.
Status checkPushCodec(const Codec& codec, const std::vector<GroupConfig>& groups);

/// Reads {"push": {"allowed": […], "default": …}, "pull": {…}}; problems go to the reader.
CodecsConfig readCodecs(ObjectReader in);

}  // namespace psd
