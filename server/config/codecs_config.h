#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/codec/codec.h"
#include "common/config/config_reader.h"
#include "server/config/parameter_groups.h"

namespace psd {

/// Which codecs trainers may use in one direction. A value type.
struct CodecRule {
  std::vector<std::string> allowed;  ///< names
  std::string fallback = "none";     ///< NAME[:option=value], of trainers that request none

  /// The codec for a trainer that requests `spec` (a peer's text; empty: the fallback). The error names the
  /// allowed ones.
  Result<std::shared_ptr<const Codec>> choose(std::string_view spec) const;
};

struct CodecsConfig {
  CodecRule push;  ///< gradients
  CodecRule pull;  ///< parameters
};

/// Whether gradients may be pushed in `codec`. ErrorCode::invalidArgument where it adds a momentum to that of
/// an optimizer, or to the differences of parameters that trainers push under a policy of local steps.
Status checkPushCodec(const Codec& codec, const std::vector<GroupConfig>& groups);

/// Reads the key `codecs`.
CodecsConfig readCodecs(ConfigReader in);

}  // namespace psd
