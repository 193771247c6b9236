#include "server/config/agreed_codecs.h"

#include <string>

namespace psd {
namespace {

Error of(const char* what, const Error& error) { return {error.code, std::string(what) + error.message}; }

}  // namespace

Result<AgreedCodecs> agreeOnCodecs(const DaemonConfig& config, std::string_view push, std::string_view pull) {
  auto codec = config.codecs.push.choose(push);
  if (!codec.ok()) return of("pushes: ", codec.error());
  if (Status fits = checkPushCodec(**codec, config.groups); !fits.ok()) return of("pushes: ", fits.error());
  const std::string& deltas = config.groups.back().policy.local.deltas;
  if (!deltas.empty() && !pull.empty()) {
    return of("pulls: ",
              {ErrorCode::invalidArgument,
               "a trainer's own codec cannot be combined with the daemon's policy.deltas, by which they "
               "are differences in " +
                   deltas});
  }
  auto pullCodec = config.codecs.pull.choose(pull);
  if (!pullCodec.ok()) return of("pulls: ", pullCodec.error());
  if (allReduceOf(config.groups) && (*codec)->name() != "none") {
    return Error{ErrorCode::invalidArgument, "pushes: codec '" + std::string((*codec)->name()) +
                                                 "' cannot be combined with policy " +
                                                 describePolicies(config.groups) + "; take none"};
  }
  return AgreedCodecs{*std::move(codec), *std::move(pullCodec)};
}

}  // namespace psd
