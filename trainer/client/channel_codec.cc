// The side of a Channel that agrees on codecs, and decodes what comes through one.

#include "common/wire/convert.h"
#include "trainer/client/channel.h"

namespace psd {

Status Channel::agreeOn(std::string_view codec, std::string_view pullCodec, Rank rank) {
  const auto agreed = [&](std::string_view spec) -> Result<std::shared_ptr<const Codec>> {
    auto made = makeCodec(spec.empty() ? "none" : spec);
    if (made.ok()) return made;
    return Error{ErrorCode::protocolMismatch, server_ +
                                                  " asks for a codec that this program does not have: " +
                                                  wire::printable(made.message(), 300)};
  };
  PSD_ASSIGN_OR_RETURN(auto push, agreed(codec));
  PSD_ASSIGN_OR_RETURN(auto pull, agreed(pullCodec));
  encoder_ = nullptr;
  if (push->name() != "none") {
    encoder_ = std::make_unique<GradientEncoder>(std::move(push), plan_.totalElements(), rank.value + 1);
  }
  pullCodec_ = pull->name() == "none" ? nullptr : std::move(pull);
  return {};
}

Status Channel::decodeSlice(std::span<const std::byte> bytes, std::span<float> into) const {
  PSD_RETURN_IF_ERROR(pullCodec_->check(bytes, into.size()));
  pullCodec_->decode(bytes, into.size(), 0, into);
  return {};
}

}  // namespace psd
